//! Headers in arguments.

/// Name and value of a header: `NAME: VALUE`, as of curl, or `NAME=VALUE`. `None` if it is neither. A name has
/// neither a colon nor an equals sign in it.
pub fn split_header(text: &str) -> Option<(&str, &str)> {
    let at = text.find([':', '='])?;
    let (name, value) = (&text[..at], &text[at + 1..]);
    let is_colon = text[at..].starts_with(':');
    Some((name.trim(), if is_colon { value.trim() } else { value }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_are_split_at_the_first_colon_or_equals_sign() {
        let table = [
            ("x-tenant: blue", Some(("x-tenant", "blue"))),
            ("x-tenant:a=b", Some(("x-tenant", "a=b"))),
            ("x-tenant=a: b ", Some(("x-tenant", "a: b "))),
            ("authorization: Bearer a=b", Some(("authorization", "Bearer a=b"))),
            ("x-tenant:", Some(("x-tenant", ""))),
            ("x-tenant", None),
        ];
        for (text, parts) in table {
            assert_eq!(split_header(text), parts, "{text}");
        }
    }
}
