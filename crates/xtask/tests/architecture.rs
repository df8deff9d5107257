//! Checks the rules of ARCHITECTURE.md that a compiler does not check. `cargo xtask licences`
//! checks the dependencies between crates.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use syn::visit::{self, Visit};
use syn::{Attribute, Item, ItemMacro, ItemMod, ItemUse, UseTree, Visibility};

/// Maximum number of lines of a file.
const LINES: usize = 800;

/// Returns the crates whose files are checked: those of the product and of the laboratory.
fn crates() -> Vec<PathBuf> {
    let top = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let mut crates = Vec::new();
    for (folder, fewest) in [("crates", 10), ("lab", 2)] {
        let entries = std::fs::read_dir(top.join(folder)).expect("a folder at the top");
        let mut found: Vec<_> =
            entries.map(|entry| entry.expect("a readable folder").path()).collect();
        found.retain(|path| path.join("Cargo.toml").exists());
        assert!(found.len() >= fewest, "only {found:?} found");
        crates.extend(found);
    }
    crates.sort();
    crates
}

/// Returns all Rust files below a folder, if it exists.
fn rust_files(folder: &Path) -> Vec<PathBuf> {
    let Ok(entries) = std::fs::read_dir(folder) else { return Vec::new() };
    let mut files = Vec::new();
    for path in entries.map(|entry| entry.expect("a readable folder").path()) {
        if path.is_dir() {
            files.extend(rust_files(&path));
        } else if path.extension().is_some_and(|end| end == "rs") {
            files.push(path);
        }
    }
    files
}

#[test]
fn files_are_short() {
    for path in crates().iter().flat_map(|path| rust_files(path)) {
        let lines = std::fs::read_to_string(&path).expect("a readable file").lines().count();
        assert!(lines <= LINES, "{} has {lines} lines", path.display());
    }
}

/// If one crate requested a cargo feature, it would be enabled in every crate of a build.
#[test]
fn stops_and_faults_hang_on_no_feature() {
    for path in crates().iter().map(|path| path.join("Cargo.toml")) {
        let text = std::fs::read_to_string(&path).expect("a readable file");
        for word in ["schedule", "faults", "testkit =", "test-"] {
            let features = text.split("[features]").nth(1).unwrap_or_default();
            let features = features.split("\n[").next().unwrap_or_default();
            assert!(!features.contains(word), "{} has a feature {word}", path.display());
        }
    }
}

#[test]
fn no_circle_between_files() {
    no_circle("files", |imports| Imports::circles(&imports.edges()));
}

/// Two folders of the same level must not import each other, even if no two of their files do.
#[test]
fn no_circle_between_folders() {
    no_circle("folders", |imports| Imports::circles(&imports.folder_edges()));
}

fn no_circle(of: &str, circles: impl Fn(&Imports) -> Vec<String>) {
    let mut found = Vec::new();
    for path in crates() {
        let name = path.file_name().expect("a crate has a name").to_string_lossy().into_owned();
        let circles = circles(&Imports::of(&path.join("src")));
        found.extend(circles.into_iter().map(|circle| format!("{name} {circle}")));
    }
    assert!(found.is_empty(), "{of} that import each other:\n{}", found.join("\n"));
}

/// The path of a module in its crate.
type Module = Vec<String>;

/// Imports of each module from others, by the names that they import.
type Edges = BTreeMap<Module, BTreeMap<Module, BTreeSet<String>>>;

/// An import: the file that has it, and its path.
struct Use {
    from: Module,
    path: Vec<String>,
}

/// The imports between the files of a crate.
#[derive(Default)]
struct Imports {
    modules: BTreeSet<Module>,
    /// Names that a module re-exports, and the paths that they refer to.
    exports: BTreeMap<(Module, String), Vec<String>>,
    uses: Vec<Use>,
    /// Exported macros, which are in the root of the crate wherever they are defined.
    macros: BTreeSet<String>,
}

impl Imports {
    fn of(source: &Path) -> Self {
        let mut imports = Self::default();
        let mut parsed = Vec::new();
        for path in rust_files(source) {
            let relative = path.strip_prefix(source).expect("found below").with_extension("");
            let mut module: Module =
                relative.iter().map(|part| part.to_string_lossy().into_owned()).collect();
            if module.last().is_some_and(|last| ["mod", "lib", "main"].contains(&last.as_str())) {
                module.pop();
            }
            if module.last().is_some_and(|last| last == "tests") {
                continue;
            }
            let text = std::fs::read_to_string(&path).expect("a readable file");
            let file = syn::parse_file(&text).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
            imports.modules.insert(module.clone());
            parsed.push((module, file));
        }
        for (module, file) in parsed {
            let mut reader = Reader { imports: &mut imports, module, inline: 0 };
            reader.visit_file(&file);
        }
        imports
    }

    /// Returns the file in which the path's item is defined, or `None` if it is not in this crate.
    fn file(&self, from: &Module, path: &[String], depth: usize) -> Option<Module> {
        let (first, rest) = path.split_first()?;
        let start = match first.as_str() {
            "crate" => Module::new(),
            "self" => from.clone(),
            "super" => from[..from.len().checked_sub(1)?].to_vec(),
            // A path may begin with a module or re-export that is in scope.
            _ => return self.child(from, path, depth),
        };
        if let ["super", ..] = rest.iter().map(String::as_str).collect::<Vec<_>>()[..] {
            return self.file(&start, rest, depth);
        }
        if rest.is_empty() { Some(start) } else { self.child(&start, rest, depth).or(Some(start)) }
    }

    fn child(&self, module: &Module, path: &[String], depth: usize) -> Option<Module> {
        let (first, rest) = path.split_first()?;
        let mut inner = module.clone();
        inner.push(first.clone());
        if self.modules.contains(&inner) {
            return self.child(&inner, rest, depth).or(Some(inner));
        }
        let export = self.exports.get(&(module.clone(), first.clone()))?;
        let whole: Vec<String> = export.iter().chain(rest).cloned().collect();
        // A name that refers to itself ends the search.
        if depth > 8 { None } else { self.file(module, &whole, depth + 1) }
    }

    /// Returns the imports of one file from another: both files, and the names.
    fn edges(&self) -> Edges {
        let mut edges = Edges::new();
        for found in &self.uses {
            if let Some(to) = self.file(&found.from, &found.path, 0).filter(|to| *to != found.from)
            {
                let name = found.path.last().cloned().unwrap_or_default();
                // A macro may have the name of a module.
                if self.macros.contains(&name) && to == [name.clone()] {
                    continue;
                }
                edges.entry(found.from.clone()).or_default().entry(to).or_default().insert(name);
            }
        }
        edges
    }

    /// Returns the imports between two modules of one parent, files and folders alike, including
    /// everything below each of them. Imports between a parent and its child do not count.
    fn folder_edges(&self) -> Edges {
        let mut edges = Edges::new();
        for (from, to, names) in self.edges().into_iter().flat_map(|(from, all)| {
            all.into_iter().map(move |(to, names)| (from.clone(), to, names))
        }) {
            let shared = from.iter().zip(&to).take_while(|(one, other)| one == other).count();
            if shared < from.len().min(to.len()) {
                let (from, to) = (from[..=shared].to_vec(), to[..=shared].to_vec());
                edges.entry(from).or_default().entry(to).or_default().extend(names);
            }
        }
        edges
    }

    /// Returns the edges that are part of a cycle, as texts.
    fn circles(edges: &Edges) -> Vec<String> {
        let reach = |from: &Module| {
            let mut seen = BTreeSet::new();
            let mut open = vec![from.clone()];
            while let Some(module) = open.pop() {
                for next in edges.get(&module).into_iter().flat_map(BTreeMap::keys) {
                    if seen.insert(next.clone()) {
                        open.push(next.clone());
                    }
                }
            }
            seen
        };
        let reached: BTreeMap<_, _> = edges.keys().map(|from| (from, reach(from))).collect();
        let mut circles = Vec::new();
        let all = edges.iter().flat_map(|(from, to)| to.iter().map(move |to| (from, to)));
        for (from, (to, names)) in all {
            if reached.get(to).is_some_and(|reached| reached.contains(from)) {
                let names: Vec<_> = names.iter().map(String::as_str).collect();
                let (from, to) = (from.join("::"), to.join("::"));
                circles.push(format!("{from} -> {to}: {}", names.join(", ")));
            }
        }
        circles
    }
}

/// Reads the imports of one file.
struct Reader<'a> {
    imports: &'a mut Imports,
    module: Module,
    /// Depth of inline modules. In one of them, `super` is this file.
    inline: usize,
}

fn is_test(attributes: &[Attribute]) -> bool {
    let condition =
        |attribute: &Attribute| attribute.meta.require_list().map(|l| l.tokens.to_string());
    attributes.iter().filter(|attribute| attribute.path().is_ident("cfg")).any(|attribute| {
        condition(attribute).is_ok_and(|tokens| tokens == "test" || tokens.starts_with("all (test"))
    })
}

impl Reader<'_> {
    fn note(&mut self, mut path: Vec<String>) {
        let supers = path.iter().take_while(|part| *part == "super").count();
        path.drain(..supers.min(self.inline));
        if path.len() > 1 {
            self.imports.uses.push(Use { from: self.module.clone(), path });
        }
    }

    fn tree(&mut self, tree: &UseTree, before: &[String], is_export: bool) {
        let mut path = before.to_vec();
        let (leaf, name) = match tree {
            UseTree::Path(inner) => {
                path.push(inner.ident.to_string());
                return self.tree(&inner.tree, &path, is_export);
            }
            UseTree::Group(group) => {
                return group.items.iter().for_each(|tree| self.tree(tree, before, is_export));
            }
            UseTree::Name(name) => (name.ident.to_string(), name.ident.to_string()),
            UseTree::Rename(rename) => (rename.ident.to_string(), rename.rename.to_string()),
            UseTree::Glob(_) => (String::new(), String::new()),
        };
        if !leaf.is_empty() && leaf != "self" {
            path.push(leaf);
        }
        // Imported names resolve paths that begin with them, as re-exports do.
        self.imports.exports.insert((self.module.clone(), name), path.clone());
        // A module re-exports its own children by their names; everything else that it names is an
        // import.
        if !is_export || path.first().is_some_and(|first| first == "crate" || first == "super") {
            self.note(path);
        }
    }
}

impl<'ast> Visit<'ast> for Reader<'_> {
    fn visit_item(&mut self, item: &'ast Item) {
        match item {
            Item::Mod(ItemMod { attrs, .. }) if is_test(attrs) => {}
            Item::Mod(ItemMod { content: Some(_), .. }) => {
                self.inline += 1;
                visit::visit_item(self, item);
                self.inline -= 1;
            }
            Item::Use(ItemUse { vis, tree, attrs, .. }) if !is_test(attrs) => {
                self.tree(tree, &[], !matches!(vis, Visibility::Inherited));
            }
            Item::Macro(ItemMacro { ident: Some(name), attrs, .. }) => {
                if attrs.iter().any(|attribute| attribute.path().is_ident("macro_export")) {
                    self.imports.macros.insert(name.to_string());
                }
            }
            _ => visit::visit_item(self, item),
        }
    }

    fn visit_visibility(&mut self, _: &'ast Visibility) {}

    fn visit_path(&mut self, path: &'ast syn::Path) {
        let path_names: Vec<_> = path.segments.iter().map(|part| part.ident.to_string()).collect();
        if path_names.len() > 1 {
            self.note(path_names);
        }
        visit::visit_path(self, path);
    }
}
