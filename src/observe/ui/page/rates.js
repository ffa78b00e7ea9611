// Rates and quantiles from counts since the start: the difference between two states.

/** Seconds that rates are of. */
const WINDOW = 10;

/** States that are kept, for the line. */
const KEPT = 120;

/** Whether a count, or that of a distribution, is less than before. */
function hasFallen(before, now) {
  const count = (value) => value?.count ?? value?.tokens ?? value;
  // How many run is no count: it falls whenever a request ends.
  return Object.keys(now).some((name) => name !== 'running' && count(now[name]) < count(before[name]));
}

/** The latest counts. */
export class Rates {
  #samples = [];

  /** Takes the counts of a state. */
  add(state) {
    const { predicted, cached } = state.kv_events ?? {};
    const traffic = state.kv_events ? { ...state.traffic, predicted, cached } : state.traffic;
    const sample = { at: state.now_ms / 1000, traffic };
    const last = this.#samples.at(-1);
    // A clock or a count that goes back is of another process, or of series that are gone.
    if (last && (sample.at < last.at || hasFallen(last.traffic, sample.traffic))) this.#samples = [];
    if (last && sample.at === last.at) this.#samples.pop();
    this.#samples.push(sample);
    if (this.#samples.length > KEPT) this.#samples.shift();
  }

  /** The counts of the window: its first, its last and its seconds; null while there are no two. */
  get window() {
    const last = this.#samples.at(-1);
    const first = this.#samples.find((sample) => sample.at >= last.at - WINDOW - 0.5);
    if (!last || first === last) return null;
    return { first: first.traffic, last: last.traffic, seconds: last.at - first.at };
  }

  /** How much a count grew in the window; null while there are no two states. */
  grown(name) {
    const window = this.window;
    return window && window.last[name] - window.first[name];
  }

  /** How often a count grows per second. */
  perSecond(name) {
    const window = this.window;
    return window && this.grown(name) / window.seconds;
  }

  /** A quantile of a distribution in the window, in seconds; null where there was nothing. */
  quantile(name, q) {
    const window = this.window;
    if (!window) return null;
    const { bounds, below } = window.last[name];
    const before = window.first[name];
    const since = (place) => below[place] - (before.below[place] ?? 0);
    const rank = q * (window.last[name].count - before.count);
    if (!(rank > 0)) return null;
    for (let place = 0; place < bounds.length; place += 1) {
      if (since(place) >= rank) {
        const [low, lower] = place === 0 ? [0, 0] : [bounds[place - 1], since(place - 1)];
        return { seconds: low + (bounds[place] - low) * ((rank - lower) / (since(place) - lower)) };
      }
    }
    return { seconds: bounds.at(-1) ?? 0, isMore: true };
  }

  /** Share of the tokens of prompts in the window that servers had cached, of those prompts of which they named them; null
   * where they named none. */
  get hitRate() {
    const { first, last } = this.window ?? {};
    if (!last?.prompts) return null;
    const since = (name) => last.prompts[name] - (first.prompts?.[name] ?? 0);
    return since('tokens') > 0 ? since('cached') / since('tokens') : null;
  }

  /** Requests per second between any two states. */
  get line() {
    const samples = this.#samples;
    return samples.slice(1).map((sample, place) => {
      const before = samples[place];
      return (sample.traffic.routed - before.traffic.routed) / Math.max(0.001, sample.at - before.at);
    });
  }
}
