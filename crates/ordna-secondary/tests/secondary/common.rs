//! Helpers of the tests: documents in memory, a source for them, and the entries of an index.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use ordna::tuple::{Number, Value};
use ordna_secondary::*;

pub const SOON: Duration = Duration::from_secs(60);

/// The documents of an embedded source.
#[derive(Default)]
pub struct Documents(pub Mutex<BTreeMap<Box<[u8]>, Document>>);

impl DocumentStore for Documents {
    fn get(&self, id: &[u8]) -> Option<Document> {
        self.0.lock().unwrap().get(id).cloned()
    }

    fn snapshot(&self, parts: usize) -> Vec<Box<dyn Iterator<Item = Named> + Send>> {
        let mut lots: Vec<Vec<Named>> = vec![Vec::new(); parts];
        for (number, (id, document)) in self.0.lock().unwrap().iter().enumerate() {
            lots[number % parts].push((id.clone(), document.clone()));
        }
        lots.into_iter().map(|lot| Box::new(lot.into_iter()) as Box<_>).collect()
    }
}

/// A set of documents, their source, and a service that follows it.
pub struct World {
    pub documents: Arc<Documents>,
    pub source: Arc<Embedded>,
    pub service: Service,
}

impl World {
    pub fn new(options: ServiceOptions) -> Self {
        let documents = Arc::new(Documents::default());
        let source = Arc::new(Embedded::new(8, 7, Arc::clone(&documents) as Arc<_>));
        let service = Service::start(options, Arc::clone(&source) as Arc<_>).unwrap();
        Self { documents, source, service }
    }

    /// Writes a document; `None` deletes it.
    pub fn put(&self, id: &str, document: Option<Document>) {
        let write = || {
            let mut documents = self.documents.0.lock().unwrap();
            match &document {
                Some(document) => documents.insert(id.as_bytes().into(), document.clone()),
                None => documents.remove(id.as_bytes()),
            };
            ((), Some(document.clone()))
        };
        self.source.write(id.as_bytes(), write).unwrap();
    }

    pub fn create(&self, definition: IndexDefinition) {
        let name = definition.name.clone();
        self.service.create(definition).unwrap();
        self.service.wait_until_built(&name, SOON).unwrap();
    }

    /// Returns all entries of an index, after everything written before has been indexed.
    pub fn all(&self, index: &str) -> Vec<(Vec<Value>, Vec<u8>)> {
        entries(&self.service.view(&Read::request_plus().timeout(SOON)).unwrap(), index)
    }
}

/// Returns all entries of an index in a view.
pub fn entries(view: &View, index: &str) -> Vec<(Vec<Value>, Vec<u8>)> {
    let all = Query::new().limit(usize::MAX).covering();
    let page = view.query(index, &all).unwrap();
    assert_eq!(page.entries.len(), view.count(index, &[], &Range::All).unwrap());
    page.entries.into_iter().map(|entry| (entry.parts, entry.id)).collect()
}

pub fn int(number: i128) -> Value {
    Value::Number(Number::Int(number))
}

pub fn text(text: &str) -> Value {
    Value::String(text.to_owned())
}

pub fn ids(page: &Page) -> Vec<String> {
    page.entries.iter().map(|entry| String::from_utf8(entry.id.clone()).unwrap()).collect()
}

/// Returns an empty directory for a test.
pub fn directory(name: &str) -> PathBuf {
    let dir = std::env::temp_dir().join(format!("ordna-secondary-{name}-{}", std::process::id()));
    let _ = std::fs::remove_dir_all(&dir);
    std::fs::create_dir_all(&dir).unwrap();
    dir
}
