//! A world whose servers come and go: what a cluster does with the numbers of pods that it
//! is told.
//!
//! A pod takes a while until it serves, and costs from the moment in which it is asked for. One
//! that is to go takes no more requests, and is gone when it has answered those that it has.

use std::cmp::Reverse;
use std::sync::Arc;
use std::time::Duration;

use super::scaling::Scaling;
use super::state::{Due, Interconnect, World};
use crate::replay::policy::Picker;
use crate::replay::requests::Requests;
use crate::replay::scale::Seen;
use crate::replay::servers::Server;
use crate::sim::{ConfigError, Engine};

impl World {
    /// A world that scales. The picker knows the pods that serve.
    pub(in crate::replay) fn scaled(
        picker: Picker,
        scaling: Scaling,
        requests: Arc<Requests>,
    ) -> Result<Self, ConfigError> {
        let servers: Vec<Server> = scaling.servers().into_iter().map(|(_, server)| server).collect();
        let mut world = Self::new(picker, &servers, Interconnect::default(), requests)?;
        if let Some(interval) = scaling.sizer.interval() {
            world.due.push(Reverse((interval, Due::Size)));
        }
        world.scaling = Some(Box::new(scaling));
        Ok(world)
    }

    /// Asks how many pods there should be, and starts and ends some.
    pub(super) fn resize(&mut self, now: Duration, again: bool) {
        let Some(scaling) = &mut self.scaling else { return };
        let mut in_flight = vec![0u32; self.engines.len()];
        for request in self.under_way.values() {
            if let Some(count) = in_flight.get_mut(request.server) {
                *count += 1;
            }
        }
        let value = |number: usize| {
            let (state, in_flight) = (self.engines[number].state(), in_flight[number]);
            scaling.numbers.iter().map(move |of| of.read(&state, in_flight)).collect()
        };
        let pods = scaling.fleet.serving().map(|(_, number)| value(number)).collect();
        let seen = Seen { asked: scaling.fleet.asked(), starting: scaling.fleet.starting(), pods };
        let size = scaling.sizer.size(&seen, now);
        let change = scaling.fleet.resize(size, now);
        for (pod, ready) in change.started {
            self.due.push(Reverse((ready, Due::Ready(pod))));
        }
        if let Some(interval) = scaling.sizer.interval().filter(|_| again) {
            self.due.push(Reverse((now + interval, Due::Size)));
        }
        if !change.left.is_empty() {
            self.picker.set_servers(&scaling.servers());
            change.left.into_iter().for_each(|number| self.leaves_if_idle(number, now));
        }
    }

    /// A pod serves from now on, unless it was taken back.
    pub(super) fn comes_up(&mut self, pod: u64, now: Duration) {
        let Some(scaling) = &mut self.scaling else { return };
        let Some(number) = scaling.fleet.comes_up(pod) else { return };
        // The configuration was good for the first ones.
        let Ok(engine) = Engine::new(scaling.engine_of(pod)) else { return };
        match self.engines.get_mut(number) {
            Some(gone) => *gone = engine,
            None => {
                self.engines.push(engine);
                self.armed.push(None);
                self.places.push(Default::default());
                if self.picker.scrape_interval().is_some() {
                    // Whoever has the number later is read at the same times.
                    self.due.push(Reverse((now + self.picker.first_scrape(number), Due::Scrape(number))));
                }
            }
        }
        self.picker.set_servers(&scaling.servers());
        self.picker.scrape(number, &self.engines[number]);
    }

    /// A server that takes no more requests is gone when it has no more.
    pub(super) fn leaves_if_idle(&mut self, number: usize, now: Duration) {
        let Some(scaling) = self.scaling.as_mut().filter(|scaling| scaling.fleet.is_leaving(number)) else {
            return;
        };
        let state = self.engines[number].state();
        if state.running + state.waiting == 0 {
            scaling.fleet.gone(number, now);
        }
    }
}
