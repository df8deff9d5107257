//! Plants mutants into a source text, each with a switch that is read when it is reached.

use std::collections::BTreeMap;
use std::ops::Range;

use proc_macro2::Span;
use syn::spanned::Spanned;
use syn::visit::{self, Visit};

/// The switch, at the end of the lowest crate's root.
pub const SWITCH: &str = r#"
/// Returns whether this mutant is chosen. Notes that it was reached, if asked to.
#[doc(hidden)]
#[inline]
pub fn mutant(number: usize) -> bool {
    type Choice = (usize, Option<std::path::PathBuf>);
    static CHOICE: std::sync::OnceLock<Choice> = std::sync::OnceLock::new();
    let (chosen, trace) = CHOICE.get_or_init(|| {
        let chosen = std::env::var("ORDNA_MUTANT").ok().and_then(|it| it.parse().ok());
        (chosen.unwrap_or(0), std::env::var_os("ORDNA_MUTANT_TRACE").map(Into::into))
    });
    if let Some(path) = trace {
        note(number, path);
    }
    *chosen == number
}

#[cold]
fn note(number: usize, path: &std::path::Path) {
    use std::io::Write as _;
    static NOTED: [std::sync::atomic::AtomicBool; 65536] =
        [const { std::sync::atomic::AtomicBool::new(false) }; 65536];
    if !NOTED[number].swap(true, std::sync::atomic::Ordering::Relaxed) {
        let file = std::fs::OpenOptions::new().create(true).append(true).open(path);
        file.and_then(|mut file| file.write_all(format!("{number}\n").as_bytes())).unwrap();
    }
}
"#;

/// The switch for crates that depend only on the library.
pub const SWITCH_AGAIN: &str = "#[doc(hidden)]\npub use ordna_base::mutant;\n";

/// A change at one place.
#[derive(Debug, Clone)]
pub struct Mutant {
    pub number: usize,
    pub package: String,
    /// Path relative to the top of the checkout.
    pub file: String,
    /// First line and column of the replaced text, both counted from 1.
    pub start: (usize, usize),
    pub genre: String,
    pub replacement: String,
    /// Description of the change.
    pub what: String,
}

impl Mutant {
    pub fn describe(&self) -> String {
        let (line, column) = self.start;
        format!("{} | {}:{line}:{column} | {}", self.number, self.file, self.what)
    }
}

/// A source text with mutants.
pub struct Planted {
    pub text: String,
    /// The bytes of the text that belong to each mutant.
    places: Vec<(usize, Range<usize>)>,
    /// Mutants without a switch, and the reason.
    pub refused: Vec<(usize, String)>,
}

impl Planted {
    /// Returns the mutant with the shortest text around a place.
    pub fn at(&self, bytes: &Range<usize>) -> Option<usize> {
        let around = |place: &Range<usize>| place.start <= bytes.start && bytes.start < place.end;
        let found = self.places.iter().filter(|(_, place)| around(place));
        found.min_by_key(|(_, place)| place.len()).map(|(number, _)| *number)
    }

    /// Returns the mutant that begins nearest to a place.
    pub fn nearest(&self, at: usize) -> Option<usize> {
        let found = self.places.iter().min_by_key(|(_, place)| place.start.abs_diff(at));
        found.map(|(number, _)| *number)
    }
}

/// Plants mutants into a text.
pub fn plant(text: &str, mutants: &[&Mutant]) -> Result<Planted, String> {
    let file = syn::parse_file(text).map_err(|error| error.to_string())?;
    let mut sites = Sites::default();
    sites.visit_file(&file);
    let mut planted = Planted { text: String::new(), places: Vec::new(), refused: Vec::new() };
    let mut edits: BTreeMap<(usize, usize), Edit> = BTreeMap::new();
    for mutant in mutants {
        let Some(site) = sites.0.get(&(mutant.genre == "FnValue", mutant.start)) else {
            planted.refused.push((mutant.number, "no such place".to_owned()));
            continue;
        };
        if let Some(why) = site.refused {
            planted.refused.push((mutant.number, why.to_owned()));
            continue;
        }
        let switch = if mutant.package == "ordna-base" { "crate" } else { "::ordna" };
        let switch = match mutant.package.as_str() {
            "ordna" => "::ordna_base",
            _ => switch,
        };
        let rank = if site.whole.is_empty() { 0 } else { usize::MAX - site.whole.len() };
        let edit = edits.entry((site.whole.start, rank)).or_insert_with(|| Edit {
            site: site.clone(),
            switch: format!("{switch}::mutant"),
            mutants: Vec::new(),
        });
        edit.mutants.push((mutant.number, mutant.replacement.clone()));
    }
    let edits: Vec<Edit> = edits.into_values().collect();
    Writer { text, edits: &edits, planted: &mut planted }.write(0..text.len(), true);
    Ok(planted)
}

/// A place where a mutant is possible.
#[derive(Debug, Clone)]
struct Site {
    /// The expression, or an empty range at the start of a function's body.
    whole: Range<usize>,
    /// The parts of the operation.
    parts: Option<Operation>,
    /// The reason why no switch is possible here.
    refused: Option<&'static str>,
}

/// An operator and its operands.
#[derive(Debug, Clone)]
struct Operation {
    /// The left operand, or `None` for an operator with one operand.
    left: Option<Range<usize>>,
    operator: Range<usize>,
    right: Range<usize>,
}

/// All mutants of a place.
struct Edit {
    site: Site,
    switch: String,
    mutants: Vec<(usize, String)>,
}

struct Writer<'a> {
    text: &'a str,
    /// Edits in order: at the same place, the start of a body first, and an outer edit before those
    /// within it.
    edits: &'a [Edit],
    planted: &'a mut Planted,
}

impl Writer<'_> {
    /// Writes a part of the text, at whose start a function's body may begin.
    fn write(&mut self, part: Range<usize>, begins: bool) {
        let mut at = part.start;
        for edit in self.edits {
            let whole = &edit.site.whole;
            let is_before = whole.start < at || (whole.is_empty() && whole.start == at && !begins);
            if is_before || whole.end > part.end || (whole.is_empty() && whole.start == part.end) {
                continue;
            }
            self.planted.text += &self.text[at..whole.start];
            self.write_edit(edit);
            at = whole.end;
        }
        self.planted.text += &self.text[at..part.end];
    }

    fn write_edit(&mut self, edit: &Edit) {
        let begin = self.planted.text.len();
        let Edit { site, switch, mutants } = edit;
        let Some(Operation { left, operator, right }) = &site.parts else {
            for (number, value) in mutants {
                let begin = self.planted.text.len();
                self.planted.text += &format!("if {switch}({number}) {{ return {value}; }} ");
                self.planted.places.push((*number, begin..self.planted.text.len()));
            }
            return;
        };
        self.planted.text += "(";
        let own = self.text[operator.clone()].to_owned();
        let all = mutants.iter().map(|(number, other)| (Some(*number), other));
        for (number, operator) in all.chain([(None, &own)]) {
            let begin = self.planted.text.len();
            if let Some(number) = number {
                self.planted.text += &format!("if {switch}({number}) ");
            }
            self.planted.text += "{ ";
            if let Some(left) = left {
                self.planted.text += "(";
                self.write(left.clone(), false);
                self.planted.text += ") ";
            }
            self.planted.text += operator;
            self.planted.text += " (";
            self.write(right.clone(), false);
            self.planted.text += ") }";
            if let Some(number) = number {
                self.planted.places.push((number, begin..self.planted.text.len()));
                self.planted.text += " else ";
            }
        }
        self.planted.text += ")";
        let all = begin..self.planted.text.len();
        self.planted.places.push((mutants[0].0, all));
    }
}

/// The places of a text by their first line and column: bodies of functions, and operators.
#[derive(Default)]
struct Sites(BTreeMap<(bool, (usize, usize)), Site>, usize);

const CONSTANT: &str = "a constant, which has no switch";

impl Sites {
    fn refused(&self) -> Option<&'static str> {
        (self.1 > 0).then_some(CONSTANT)
    }

    fn constant(&mut self, visit: impl FnOnce(&mut Self)) {
        self.1 += 1;
        visit(self);
        self.1 -= 1;
    }

    fn body(&mut self, block: &syn::Block) {
        if let Some(first) = block.stmts.first() {
            let start = first.span().byte_range().start;
            let site = Site { whole: start..start, parts: None, refused: self.refused() };
            self.0.insert((true, place(first.span())), site);
        }
    }

    fn function(&mut self, signature: &syn::Signature, block: &syn::Block) {
        let constant = usize::from(signature.constness.is_some());
        self.1 += constant;
        self.body(block);
        visit::visit_block(self, block);
        self.1 -= constant;
    }
}

fn place(span: Span) -> (usize, usize) {
    let start = span.start();
    (start.line, start.column + 1)
}

/// Returns whether an operand is a `let` of a chain.
fn has_let(expression: &syn::Expr) -> bool {
    match expression {
        syn::Expr::Let(_) => true,
        syn::Expr::Binary(it) if matches!(it.op, syn::BinOp::And(_)) => {
            has_let(&it.left) || has_let(&it.right)
        }
        _ => false,
    }
}

impl<'ast> Visit<'ast> for Sites {
    fn visit_item_fn(&mut self, item: &'ast syn::ItemFn) {
        self.function(&item.sig, &item.block);
    }

    fn visit_impl_item_fn(&mut self, item: &'ast syn::ImplItemFn) {
        self.function(&item.sig, &item.block);
    }

    fn visit_trait_item_fn(&mut self, item: &'ast syn::TraitItemFn) {
        if let Some(block) = &item.default {
            self.function(&item.sig, block);
        }
    }

    fn visit_item_const(&mut self, item: &'ast syn::ItemConst) {
        self.constant(|this| visit::visit_item_const(this, item));
    }

    fn visit_impl_item_const(&mut self, item: &'ast syn::ImplItemConst) {
        self.constant(|this| visit::visit_impl_item_const(this, item));
    }

    fn visit_trait_item_const(&mut self, item: &'ast syn::TraitItemConst) {
        self.constant(|this| visit::visit_trait_item_const(this, item));
    }

    fn visit_item_static(&mut self, item: &'ast syn::ItemStatic) {
        self.constant(|this| visit::visit_item_static(this, item));
    }

    fn visit_expr_const(&mut self, item: &'ast syn::ExprConst) {
        self.constant(|this| visit::visit_expr_const(this, item));
    }

    fn visit_type_array(&mut self, item: &'ast syn::TypeArray) {
        self.constant(|this| visit::visit_type_array(this, item));
    }

    fn visit_expr_repeat(&mut self, item: &'ast syn::ExprRepeat) {
        self.visit_expr(&item.expr);
        self.constant(|this| this.visit_expr(&item.len));
    }

    fn visit_expr_binary(&mut self, item: &'ast syn::ExprBinary) {
        let chain = (has_let(&item.left) || has_let(&item.right))
            .then_some("an operator of a chain with `let`, which no other can replace");
        let [left, operator, right] =
            [item.left.span(), item.op.span(), item.right.span()].map(|span| span.byte_range());
        let site = Site {
            whole: left.start..right.end,
            parts: Some(Operation { left: Some(left), operator, right }),
            refused: chain.or(self.refused()),
        };
        self.0.insert((false, place(item.op.span())), site);
        visit::visit_expr_binary(self, item);
    }

    fn visit_expr_unary(&mut self, item: &'ast syn::ExprUnary) {
        let (operator, right) = (item.op.span().byte_range(), item.expr.span().byte_range());
        let site = Site {
            whole: operator.start..right.end,
            parts: Some(Operation { left: None, operator, right }),
            refused: self.refused(),
        };
        self.0.insert((false, place(item.op.span())), site);
        visit::visit_expr_unary(self, item);
    }
}
