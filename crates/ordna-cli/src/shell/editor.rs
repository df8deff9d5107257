//! The line editor of the shell, with a history in a file and completion of commands and options.

use std::borrow::Cow;
use std::path::PathBuf;

use anyhow::Context as _;
use reedline::{
    ColumnarMenu, Completer, Emacs, FileBackedHistory, History, HistoryItem, HistoryItemId,
    HistorySessionId, KeyCode, KeyModifiers, MenuBuilder, Prompt, PromptEditMode,
    PromptHistorySearch, Reedline, ReedlineEvent, ReedlineMenu, SearchQuery, Signal, Span,
    Suggestion, default_emacs_keybindings,
};

use super::target::Description;

/// Maximum number of lines in the history.
const MOST_HISTORY: usize = 10_000;
/// Name of the menu of completions.
const MENU: &str = "completions";

/// The line editor.
pub struct Editor(Reedline);

impl Editor {
    /// Creates an editor with the history of earlier sessions.
    pub fn new(commands: &[Description]) -> anyhow::Result<Self> {
        let history = match history_file() {
            Some(path) => FileBackedHistory::with_file(MOST_HISTORY, path.clone())
                .with_context(|| format!("cannot read the history {}", path.display()))?,
            None => FileBackedHistory::new(MOST_HISTORY)?,
        };
        let mut keys = default_emacs_keybindings();
        let complete = ReedlineEvent::UntilFound(vec![
            ReedlineEvent::Menu(MENU.into()),
            ReedlineEvent::MenuNext,
        ]);
        keys.add_binding(KeyModifiers::NONE, KeyCode::Tab, complete);
        let menu = ReedlineMenu::EngineCompleter(Box::new(ColumnarMenu::default().with_name(MENU)));
        let editor = Reedline::create()
            .with_history(Box::new(WithoutSecrets(history)))
            .with_completer(Box::new(Commands::of(commands)))
            .with_menu(menu)
            .with_quick_completions(true)
            .with_partial_completions(true)
            .with_edit_mode(Box::new(Emacs::new(keys)));
        Ok(Self(editor))
    }

    /// Reads a line. Returns `None` at the end of the input. Ctrl-C discards the line.
    pub fn read(&mut self, prompt: &str) -> anyhow::Result<Option<String>> {
        loop {
            match self.0.read_line(&Name(prompt)).context("cannot read from the terminal")? {
                Signal::Success(line) => return Ok(Some(line)),
                Signal::CtrlD => return Ok(None),
                _ => {}
            }
        }
    }
}

/// The prompt, which consists of a name.
struct Name<'a>(&'a str);

impl Prompt for Name<'_> {
    fn render_prompt_left(&self) -> Cow<'_, str> {
        self.0.into()
    }

    fn render_prompt_right(&self) -> Cow<'_, str> {
        "".into()
    }

    fn render_prompt_indicator(&self, _: PromptEditMode) -> Cow<'_, str> {
        "> ".into()
    }

    fn render_prompt_multiline_indicator(&self) -> Cow<'_, str> {
        "… ".into()
    }

    fn render_prompt_history_search_indicator(&self, search: PromptHistorySearch) -> Cow<'_, str> {
        format!("(search: {}) ", search.term).into()
    }
}

/// A history that does not keep lines with passwords.
struct WithoutSecrets(FileBackedHistory);

impl History for WithoutSecrets {
    fn save(&mut self, item: HistoryItem) -> reedline::Result<HistoryItem> {
        if holds_a_secret(&item.command_line) {
            return Ok(item);
        }
        let saved = self.0.save(item)?;
        // Saves the line for later sessions. The shell also works if the history cannot be saved.
        let _ = self.0.sync();
        Ok(saved)
    }

    fn load(&self, id: HistoryItemId) -> reedline::Result<HistoryItem> {
        self.0.load(id)
    }

    fn count(&self, query: SearchQuery) -> reedline::Result<i64> {
        self.0.count(query)
    }

    fn search(&self, query: SearchQuery) -> reedline::Result<Vec<HistoryItem>> {
        self.0.search(query)
    }

    fn update(
        &mut self,
        id: HistoryItemId,
        updater: &dyn Fn(HistoryItem) -> HistoryItem,
    ) -> reedline::Result<()> {
        self.0.update(id, updater)
    }

    fn clear(&mut self) -> reedline::Result<()> {
        self.0.clear()
    }

    fn delete(&mut self, id: HistoryItemId) -> reedline::Result<()> {
        self.0.delete(id)
    }

    fn sync(&mut self) -> std::io::Result<()> {
        self.0.sync()
    }

    fn session(&self) -> Option<HistorySessionId> {
        self.0.session()
    }
}

/// Returns the file of the history: `ORDNA_HISTORY`, or a file in the user's state directory. An
/// empty variable disables the history.
fn history_file() -> Option<PathBuf> {
    if let Some(path) = std::env::var_os("ORDNA_HISTORY") {
        return Some(path.into()).filter(|path: &PathBuf| !path.as_os_str().is_empty());
    }
    let state = std::env::var_os("XDG_STATE_HOME").map(PathBuf::from);
    let home = || Some(PathBuf::from(std::env::var_os("HOME")?).join(".local/state"));
    let dir = state.filter(|path| path.is_absolute()).or_else(home)?.join("ordna");
    std::fs::create_dir_all(&dir).ok()?;
    Some(dir.join("history"))
}

/// Returns whether a line may contain a password, so that the history must not keep it.
fn holds_a_secret(line: &str) -> bool {
    let line = line.to_ascii_lowercase();
    let mut words = line.split_whitespace();
    let first = words.next().unwrap_or_default();
    let second = words.next().unwrap_or_default();
    match first {
        "auth" | "hello" | "migrate" => true,
        "acl" => second == "setuser",
        "config" => second == "set" && line.contains("pass"),
        _ => false,
    }
}

/// Names and options of all commands.
#[derive(Debug)]
struct Commands(Vec<(String, Vec<String>)>);

impl Commands {
    fn of(commands: &[Description]) -> Self {
        let own = ["help", "exit"].map(|name| (name.to_owned(), Vec::new()));
        let others = commands.iter().map(|command| (command.name.clone(), command.options.clone()));
        Self(others.chain(own).collect())
    }

    /// Returns where the word under the cursor begins, and the words that could replace it.
    fn candidates(&self, line: &str) -> (usize, Vec<String>) {
        let start = line.rfind([' ', '\t']).map_or(0, |space| space + 1);
        let typed = line.to_ascii_lowercase();
        let before: Vec<&str> = typed[..start].split_whitespace().collect();
        let word = &typed[start..];
        let lead = before.iter().map(|word| format!("{word} ")).collect::<String>();
        // Names of commands, and the subcommands of a command that has some.
        let mut found: Vec<String> = Vec::new();
        for (name, _) in &self.0 {
            let rest = name.strip_prefix(&lead).filter(|rest| rest.starts_with(word));
            let next = rest.and_then(|rest| rest.split(' ').next());
            found.extend(next.map(str::to_owned));
        }
        if before.first() == Some(&"help") {
            let names = self.0.iter().map(|(name, _)| name.clone());
            found.extend(names.filter(|name| before.len() == 1 && name.starts_with(word)));
        }
        let longest =
            self.0.iter().filter(|(name, _)| format!("{lead} ").starts_with(&format!("{name} ")));
        if let Some((_, options)) = longest.max_by_key(|(name, _)| name.len()) {
            let fits = |option: &&String| option.to_ascii_lowercase().starts_with(word);
            found.extend(options.iter().filter(fits).cloned());
        }
        found.sort();
        found.dedup();
        (start, found)
    }
}

impl Completer for Commands {
    fn complete(&mut self, line: &str, at: usize) -> Vec<Suggestion> {
        let (start, found) = self.candidates(&line[..at]);
        let suggest = |value: String| Suggestion {
            value,
            span: Span::new(start, at),
            append_whitespace: true,
            ..Suggestion::default()
        };
        found.into_iter().map(suggest).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_subcommands_and_options_are_completed() {
        let command = |name: &str, options: &[&str]| Description {
            name: name.into(),
            options: options.iter().map(ToString::to_string).collect(),
            ..Description::default()
        };
        let commands = Commands::of(&[
            command("ordna.range", &["REV", "LIMIT"]),
            command("ordna.snapshot", &[]),
            command("ordna.snapshot create", &["EX", "KEEP"]),
            command("ordna.snapshot drop", &[]),
            command("get", &[]),
        ]);
        for (line, start, expected) in [
            ("OR", 0, &["ordna.range", "ordna.snapshot"][..]),
            ("get k", 4, &[]),
            ("ordna.snapshot ", 15, &["create", "drop"]),
            ("ordna.snapshot create k", 22, &["KEEP"]),
            ("ordna.range a b ", 16, &["LIMIT", "REV"]),
            ("ordna.range å l", 15, &["LIMIT"]),
            ("help ge", 5, &["get"]),
            ("e", 0, &["exit"]),
        ] {
            let (at, found) = commands.candidates(line);
            assert!(at == start && found == expected, "{line}: {at} {found:?}");
        }
    }

    #[test]
    fn passwords_are_not_kept() {
        for line in ["AUTH x", " auth user x", "ACL SETUSER a >x", "config set requirepass x"] {
            assert!(holds_a_secret(line), "{line}");
        }
        assert!(!holds_a_secret("acl list") && !holds_a_secret("get auth"));
    }
}
