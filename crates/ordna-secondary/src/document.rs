//! Documents, and changes of documents.

use std::collections::BTreeMap;

use ordna::tuple::{Number, Value};

/// The fields of a document, in order. A field of a nested object has a name with dots.
///
/// ```
/// use ordna_secondary::Document;
/// use ordna::tuple::Value;
///
/// let town = serde_json::json!({"name": "Lund", "at": {"country": "SE"}});
/// let town = Document::from_json(&town);
/// assert_eq!(town.get("at.country"), Some(&Value::String("SE".to_owned())));
/// ```
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Document {
    fields: Vec<(Box<str>, Value)>,
}

impl Document {
    /// Creates a document without fields.
    pub fn new() -> Self {
        Self::default()
    }

    /// Appends a field. If two fields have the same name, the first one counts.
    pub fn push(&mut self, name: impl Into<Box<str>>, value: Value) {
        self.fields.push((name.into(), value));
    }

    /// Works like [`push`](Self::push), but returns the document.
    #[must_use]
    pub fn with(mut self, name: impl Into<Box<str>>, value: Value) -> Self {
        self.push(name, value);
        self
    }

    /// Returns the value of a field. O(fields).
    pub fn get(&self, name: &str) -> Option<&Value> {
        self.fields.iter().find(|(field, _)| &**field == name).map(|(_, value)| value)
    }

    /// Iterates over all fields, in order.
    pub fn fields(&self) -> impl Iterator<Item = (&str, &Value)> {
        self.fields.iter().map(|(name, value)| (&**name, value))
    }

    /// Converts a JSON object to a document. Any other JSON value becomes a document with one
    /// field, whose name is empty.
    ///
    /// An array that contains objects also has a field for each field of these objects, so that an
    /// index can [explode](crate::Explode) it: of `{"items": [{"id": 1}, {"id": 2}]}`, the field
    /// `items.id` is the array of 1 and 2. Objects without the field add no element.
    pub fn from_json(json: &serde_json::Value) -> Self {
        let mut document = Self::new();
        document.flatten(String::new(), json);
        document
    }

    fn flatten(&mut self, name: String, json: &serde_json::Value) {
        let fields = match json {
            serde_json::Value::Object(fields) => fields,
            serde_json::Value::Array(items) => {
                self.push_columns(&name, items);
                return self.push(name, of_json(json));
            }
            _ => return self.push(name, of_json(json)),
        };
        for (field, json) in fields {
            let name = if name.is_empty() { field.clone() } else { format!("{name}.{field}") };
            self.flatten(name, json);
        }
    }
}

impl Document {
    /// Appends the fields of the objects of an array.
    fn push_columns(&mut self, name: &str, items: &[serde_json::Value]) {
        let mut columns: BTreeMap<&str, Vec<Value>> = BTreeMap::new();
        for (field, json) in items.iter().filter_map(serde_json::Value::as_object).flatten() {
            columns.entry(field).or_default().push(of_json(json));
        }
        for (field, values) in columns {
            let name = if name.is_empty() { field.to_owned() } else { format!("{name}.{field}") };
            self.push(name, Value::Tuple(values));
        }
    }
}

/// Converts a JSON value. An object within an array becomes a tuple of its values.
fn of_json(json: &serde_json::Value) -> Value {
    match json {
        serde_json::Value::Null => Value::Null,
        serde_json::Value::Bool(value) => Value::Bool(*value),
        serde_json::Value::String(text) => Value::String(text.clone()),
        serde_json::Value::Array(items) => Value::Tuple(items.iter().map(of_json).collect()),
        serde_json::Value::Object(fields) => Value::Tuple(fields.values().map(of_json).collect()),
        serde_json::Value::Number(number) => Value::Number(
            (number.as_i64().map(|n| Number::from(i128::from(n))))
                .or_else(|| number.as_u64().map(|n| Number::from(u128::from(n))))
                .unwrap_or_else(|| Number::from(number.as_f64().unwrap_or(f64::NAN))),
        ),
    }
}

/// A change of one document, as a source reports it.
#[derive(Debug, Clone, PartialEq)]
pub struct Mutation {
    /// The partition of the document. All changes of a document belong to the same partition.
    pub partition: u32,
    /// The sequence number of the change in the partition. It is 0 if the document comes from a
    /// snapshot of the source; then the position of the partition stays the same.
    pub seq: u64,
    /// The id of the document.
    pub id: Box<[u8]>,
    /// The whole document after the change; `None` if it was deleted.
    pub document: Option<Document>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_array_of_objects_has_a_field_for_each_field_of_theirs() {
        let json = serde_json::json!({"a": {"items": [{"x": 1, "y": "b"}, 7, {"x": [2]}]}});
        let document = Document::from_json(&json);
        let number = |n: i128| Value::Number(Number::from(n));
        let column = document.get("a.items.x");
        let expected = Value::Tuple(vec![number(1), Value::Tuple(vec![number(2)])]);
        assert_eq!(column, Some(&expected));
        let text = Value::String("b".to_owned());
        assert_eq!(document.get("a.items.y"), Some(&Value::Tuple(vec![text])));
        assert!(matches!(document.get("a.items"), Some(Value::Tuple(items)) if items.len() == 3));
        let names: Vec<&str> = document.fields().map(|(name, _)| name).collect();
        assert_eq!(names, ["a.items.x", "a.items.y", "a.items"]);
    }
}
