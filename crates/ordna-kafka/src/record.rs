//! Conversion of a record of the topic to a change of a document.

use ordna_secondary::Document;

/// Maximum number of bytes of a key.
const MAX_KEY: usize = 32 << 10;

/// Returns the document in a record's value; `None` if the record is a deletion.
///
/// # Errors
/// The reason why the record is a poison record.
pub fn document(key: Option<&[u8]>, value: Option<&[u8]>) -> Result<Option<Document>, String> {
    let key = key.ok_or("it has no key")?;
    if key.len() > MAX_KEY {
        return Err(format!("its key has {} bytes; {MAX_KEY} are allowed", key.len()));
    }
    let Some(value) = value else { return Ok(None) };
    let json: serde_json::Value =
        serde_json::from_slice(value).map_err(|error| format!("its value is not JSON: {error}"))?;
    if !json.is_object() {
        return Err("its value is not a JSON object".to_owned());
    }
    Ok(Some(Document::from_json(&json)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn objects_are_documents_null_deletes_and_all_else_is_poison() {
        let found = document(Some(b"k"), Some(br#"{"a": {"b": true}}"#)).unwrap().unwrap();
        assert_eq!(found.get("a.b"), Some(&ordna::tuple::Value::Bool(true)));
        assert_eq!(document(Some(b""), None), Ok(None));
        for (key, value) in [
            (None, Some(&b"{}"[..])),
            (None, None),
            (Some(&b"k"[..]), Some(&b""[..])),
            (Some(b"k"), Some(b"{\"a\":")),
            (Some(b"k"), Some(b"[1]")),
            (Some(b"k"), Some(b"\xFF")),
            (Some(&[0; MAX_KEY + 1]), None),
        ] {
            assert!(document(key, value).is_err(), "{key:?} {value:?}");
        }
    }
}
