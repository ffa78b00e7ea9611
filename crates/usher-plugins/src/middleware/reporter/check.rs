//! Restricts the syntax of expressions, so that evaluating one ends soon, wherever it is
//! used, and can't exhaust the stack: no loops, no recursion of its own, a bounded depth.

use cel::common::ast::{Expr, IdedExpr, operators};

/// Deepest nesting. A level of evaluation takes up to 40 KB of stack in a debug build, and
/// threads have 2 MB.
pub(super) const MAX_DEPTH: usize = 24;

const OPERATORS: [&str; 17] = [
    operators::CONDITIONAL,
    operators::LOGICAL_AND,
    operators::LOGICAL_OR,
    operators::LOGICAL_NOT,
    operators::ADD,
    operators::SUBSTRACT,
    operators::MULTIPLY,
    operators::DIVIDE,
    operators::MODULO,
    operators::EQUALS,
    operators::NOT_EQUALS,
    operators::GREATER,
    operators::GREATER_EQUALS,
    operators::LESS,
    operators::LESS_EQUALS,
    operators::NEGATE,
    operators::INDEX,
];

/// Functions that take and give numbers.
const FUNCTIONS: [&str; 4] = ["double", "dyn", "int", "uint"];

/// The one variable.
pub(super) const USAGE: &str = "usage";

/// Error of a text that is not an expression.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Problem {
    pub(super) message: String,
    pub(super) hint: Option<String>,
}

impl Problem {
    pub(super) fn new(message: impl Into<String>) -> Self {
        Self { message: message.into(), hint: None }
    }

    pub(super) fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }
}

/// Refuses an expression that uses anything else.
pub(super) fn check(root: &IdedExpr) -> Result<(), Problem> {
    // Not recursive, as the tree may be deep.
    let mut waiting = vec![(root, 1)];
    while let Some((node, depth)) = waiting.pop() {
        if depth > MAX_DEPTH {
            let message = format!("nested more than {MAX_DEPTH} deep");
            return Err(Problem::new(message).hint("a sum of many terms nests too: use several attributes"));
        }
        match &node.expr {
            Expr::Literal(_) => {}
            Expr::Ident(name) if name == USAGE => {}
            Expr::Ident(name) => {
                let message = format!("unknown variable '{name}'");
                return Err(Problem::new(message).hint("there is only usage, for example usage.total_tokens"));
            }
            Expr::Select(select) => waiting.push((select.operand.as_ref(), depth + 1)),
            Expr::List(list) => waiting.extend(list.elements.iter().map(|element| (element, depth + 1))),
            Expr::Call(call) => {
                let name = call.func_name.as_str();
                let known = name == operators::IN || OPERATORS.contains(&name) || FUNCTIONS.contains(&name);
                if !known || call.target.is_some() {
                    let known = FUNCTIONS.join(", ");
                    return Err(Problem::new(format!("unknown function '{name}'"))
                        .hint(format!("known here: has, {known}, and operators")));
                }
                waiting.extend(call.args.iter().map(|argument| (argument, depth + 1)));
            }
            Expr::Comprehension(_) => {
                let message = "all, exists, exists_one, filter and map are not supported";
                return Err(Problem::new(message).hint("usage holds numbers: combine them with operators"));
            }
            Expr::Map(_) | Expr::Struct(_) | Expr::Unspecified => {
                return Err(Problem::new("maps and messages are not supported"));
            }
        }
    }
    Ok(())
}
