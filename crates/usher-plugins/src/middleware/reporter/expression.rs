//! One expression of the Common Expression Language over the tokens of a request:
//! compiled once, and then evaluated for every response within fixed bounds.
//!
//! Bounds: the text has a largest length; it is parsed on a thread of its own with room for that
//! length, as the parser recurses; [`check`](super::check) leaves nothing in it that loops, and
//! bounds its depth; its operators check for overflow themselves.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, LazyLock};
use std::thread;

use cel::common::ast::IdedExpr;
use cel::{Context, Env, ExecutionError, Value};
use serde::{Serialize, Serializer};
use usher_core::request::usage::Usage;

use super::check::{Problem, USAGE, check};

/// Longest text in bytes.
const MAX_LENGTH: usize = 1000;

/// Deepest nesting that the parser goes into; beyond what [`check`] lets through, so that
/// it rarely is the one to complain.
const MAX_PARSER_DEPTH: u16 = 32;

/// Stack of the thread that parses. A term of a sum takes up to 60 KB in a debug build,
/// and [`MAX_LENGTH`] has room for 500 of them. What is not used is not paid for.
const PARSER_STACK: usize = 64 << 20;

/// Operators and conversions; no clocks and no patterns, whose cost would depend on data.
static ENVIRONMENT: LazyLock<Arc<Env>> =
    LazyLock::new(|| Arc::new(Env::stdlib().with_optional_support(false)));

/// A compiled expression.
#[derive(Clone)]
pub struct Expression {
    source: Arc<str>,
    tree: Arc<IdedExpr>,
}

/// Kind of value that an expression has to give.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// A number.
    Number,
    /// `true` or `false`.
    Truth,
}

/// Error of an expression that has no value for a response.
#[derive(Debug, thiserror::Error)]
pub(super) enum Failure {
    #[error("{0}")]
    Evaluation(#[from] ExecutionError),
    #[error("it gives {0}")]
    WrongKind(&'static str),
    #[error("its value does not fit 64 bits")]
    TooLarge,
}

/// Variables of the expressions for one response.
pub(super) struct Variables(Context<'static, 'static>);

impl Variables {
    /// `usage`, with numbers that are doubles, as llm-d-router has it: what the response
    /// doesn't say is 0, but for the details, which are only there when it does.
    pub(super) fn of(usage: &Usage) -> Self {
        let number = |tokens: u64| Value::Float(tokens as f64);
        let prompt = usage.prompt_tokens.unwrap_or_default();
        let completion = usage.completion_tokens.unwrap_or_default();
        let mut fields = HashMap::from([
            ("prompt_tokens", number(prompt)),
            ("completion_tokens", number(completion)),
            ("total_tokens", number(prompt.saturating_add(completion))),
        ]);
        if let Some(cached) = usage.cached_tokens {
            fields.insert("prompt_tokens_details", HashMap::from([("cached_tokens", number(cached))]).into());
        }
        let mut context = Context::with_env(Arc::clone(&ENVIRONMENT));
        context.add_variable_from_value(USAGE, fields);
        Self(context)
    }
}

impl Expression {
    /// Compiles a text.
    ///
    /// # Errors
    /// `Problem` for a syntax error, and for an expression of wrong types: one that, for a response with all
    /// counts, returns another type than `kind`, or fails in a way that does not depend on the numbers.
    pub(super) fn compile(source: &str, kind: Kind) -> Result<Self, Problem> {
        if source.len() > MAX_LENGTH {
            return Err(Problem::new(format!("it is longer than {MAX_LENGTH} bytes")));
        }
        let text = source.to_owned();
        let parser = thread::Builder::new().name("cel".to_owned()).stack_size(PARSER_STACK);
        let parsing = parser.spawn(move || parse(&text));
        let parsing = parsing.map_err(|error| Problem::new(format!("no thread to parse it: {error}")))?;
        // The parser is not ours: should it panic, that costs this expression alone.
        let tree = parsing.join().unwrap_or_else(|_| Err(Problem::new("it can't be parsed")))?;
        let expression = Self { source: source.into(), tree: Arc::new(tree) };
        expression.try_out(kind)?;
        Ok(expression)
    }

    /// The value as a number, cut off at the point.
    pub(super) fn number(&self, variables: &Variables) -> Result<i64, Failure> {
        match Value::resolve(&self.tree, &variables.0)? {
            Value::Int(value) => Ok(value),
            Value::UInt(value) => i64::try_from(value).map_err(|_| Failure::TooLarge),
            Value::Float(value) if (-TWO_TO_63..TWO_TO_63).contains(&value) => Ok(value as i64),
            Value::Float(_) => Err(Failure::TooLarge),
            other => Err(Failure::WrongKind(name(&other))),
        }
    }

    /// Evaluates to `true` if the value is `true`.
    pub(super) fn holds(&self, variables: &Variables) -> Result<bool, Failure> {
        match Value::resolve(&self.tree, &variables.0)? {
            Value::Bool(value) => Ok(value),
            other => Err(Failure::WrongKind(name(&other))),
        }
    }

    /// Evaluates it for a response with all there is, to find mistakes in types: those
    /// that are found then don't depend on the numbers.
    fn try_out(&self, kind: Kind) -> Result<(), Problem> {
        let sample =
            Usage { prompt_tokens: Some(1000), completion_tokens: Some(500), cached_tokens: Some(200) };
        let variables = Variables::of(&sample);
        let tried = match kind {
            Kind::Number => self.number(&variables).map(|_| ()),
            Kind::Truth => self.holds(&variables).map(|_| ()),
        };
        match tried {
            Err(Failure::WrongKind(got)) => {
                let wanted = match kind {
                    Kind::Number => "a number",
                    Kind::Truth => "true or false",
                };
                Err(Problem::new(format!("it gives {got} instead of {wanted}")))
            }
            Err(Failure::Evaluation(error)) => mistake(&error).map_or(Ok(()), Err),
            Err(Failure::TooLarge) | Ok(()) => Ok(()),
        }
    }
}

/// 2⁶³, the first number that an `i64` can't hold; exact as a double.
const TWO_TO_63: f64 = 9_223_372_036_854_775_808.0;

/// Parses a text and checks what it uses. Drops a tree that is too deep before it
/// returns to a smaller stack.
fn parse(text: &str) -> Result<IdedExpr, Problem> {
    let parser = ENVIRONMENT.parser().max_recursion_depth(MAX_PARSER_DEPTH);
    let tree = parser.parse(text).map_err(|errors| {
        let first = errors.errors.first();
        match first {
            Some(error) if !error.msg.contains("Recursion limit") => {
                // What the grammar would have taken instead is a long list.
                let words = error.msg.trim_start_matches("Syntax error: ");
                let words = words.split(" expecting {").next().unwrap_or(words);
                Problem::new(format!("not a CEL expression, column {}: {words}", error.pos.1))
            }
            _ => Problem::new("nested too deeply"),
        }
    })?;
    check(&tree)?;
    Ok(tree)
}

/// A mistake in an expression, if that is why it failed.
fn mistake(error: &ExecutionError) -> Option<Problem> {
    let is_mistake = match error {
        // Two doubles always compare, unless one of them is no number.
        ExecutionError::NoSuchOverload(error) => error.argument_types() != ["double", "double"],
        ExecutionError::UnsupportedBinaryOperator(..)
        | ExecutionError::UnexpectedType { .. }
        | ExecutionError::UnsupportedIndex(..)
        | ExecutionError::UndeclaredReference(_) => true,
        _ => false,
    };
    is_mistake.then(|| {
        Problem::new(format!("it always fails: {error}"))
            .hint("the numbers of usage are doubles: write 4.0, not 4, to calculate with them")
    })
}

/// A kind of value in a sentence.
fn name(value: &Value) -> &'static str {
    match value {
        Value::Int(_) | Value::UInt(_) | Value::Float(_) => "a number",
        Value::Bool(_) => "true or false",
        Value::String(_) => "text",
        Value::List(_) => "a list",
        Value::Map(_) => "a map",
        _ => "something else",
    }
}

impl PartialEq for Expression {
    fn eq(&self, other: &Self) -> bool {
        self.source == other.source
    }
}

impl fmt::Debug for Expression {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Expression({:?})", self.source)
    }
}

impl Serialize for Expression {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.source)
    }
}

#[cfg(test)]
#[path = "expression_tests.rs"]
mod tests;
