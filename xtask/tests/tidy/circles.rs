//! No files of a crate depend on each other in a circle.
//!
//! A file depends on the files that define what its code names. The rule follows `use` lines and
//! paths through re-exports to the definition. A declaration of a module and a re-export are no
//! dependency. Test code may depend on everything.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use proc_macro2::{Delimiter, TokenStream, TokenTree};

use super::Finding;
use super::repository::Repository;

/// These crates have circles: a relay suspends itself, and protocols use the types of their front.
const WITH_CIRCLES: [&str; 2] = ["spliceway", "spliceway-protocol"];

pub(crate) fn circles(repository: &Repository) -> Vec<Finding> {
    let is_root = |path: &str| {
        let words: Vec<_> = path.split('/').collect();
        matches!(words[..], ["crates", name, "src", "main.rs" | "lib.rs"] if !WITH_CIRCLES.contains(&name))
    };
    let roots = repository.rust().filter(|file| is_root(&file.path));
    roots
        .flat_map(|root| Crate::of(repository, &root.path).circles())
        .collect()
}

/// The modules of a crate. The first one is the root.
struct Crate<'a> {
    repository: &'a Repository,
    modules: Vec<Module<'a>>,
}

struct Module<'a> {
    file: &'a str,
    parent: Option<usize>,
    children: HashMap<String, usize>,
    code: Code,
}

/// What the rule needs from the code of a module.
#[derive(Default)]
struct Code {
    /// The modules that it declares, with the code of the inline ones.
    modules: Vec<(String, Option<Vec<Token>>)>,
    /// The names of the other items that it defines.
    items: HashSet<String>,
    /// Its `use` lines, including those within functions.
    uses: Vec<Use>,
    /// The paths and names outside `use` lines.
    paths: Vec<Path>,
}

#[derive(Clone)]
struct Path {
    words: Vec<String>,
    line: usize,
}

struct Use {
    path: Path,
    /// `*` for all names below the path.
    name: String,
    is_public: bool,
}

/// For each file the files that it depends on, and a path to each item that it uses.
type Edges<'a> = BTreeMap<&'a str, BTreeMap<&'a str, BTreeMap<&'a str, &'a Path>>>;

impl<'a> Crate<'a> {
    fn of(repository: &'a Repository, root: &'a str) -> Self {
        let mut this = Self {
            repository,
            modules: Vec::new(),
        };
        let folder = root.rsplit_once('/').expect("a root is in a folder").0;
        this.add_file(root, folder, None);
        this
    }

    /// Adds the module of this file, and the modules below it, whose files are in the folder.
    /// Returns the position of the module.
    fn add_file(&mut self, path: &str, folder: &str, parent: Option<usize>) -> Option<usize> {
        let file = self.repository.file(path)?;
        let code = file.text.parse().unwrap_or_else(|error| panic!("{path}: {error}"));
        Some(self.add(&tokens(code), &file.path, folder, parent))
    }

    fn add(&mut self, tokens: &[Token], file: &'a str, folder: &str, parent: Option<usize>) -> usize {
        let mut code = Code::default();
        code.read(tokens, true);
        let (own, modules) = (self.modules.len(), std::mem::take(&mut code.modules));
        self.modules.push(Module {
            file,
            parent,
            children: HashMap::new(),
            code,
        });
        for (name, inline) in modules {
            let below = format!("{folder}/{name}");
            let child = match inline {
                Some(code) => Some(self.add(&code, file, &below, Some(own))),
                None => self.add_file(&format!("{below}.rs"), &below, Some(own)),
            };
            self.modules[own].children.extend(child.map(|child| (name, child)));
        }
        own
    }

    fn circles(&self) -> Vec<Finding> {
        let edges = self.edges();
        let below: BTreeMap<_, _> = edges.keys().map(|file| (*file, files_below(&edges, file))).collect();
        let is_below = |file: &str, other: &str| below.get(other).is_some_and(|files| files.contains(file));
        let circles: BTreeSet<Vec<_>> = below
            .iter()
            .map(|(file, files)| files.iter().copied().filter(|other| is_below(file, other)).collect())
            .collect();
        let found = circles.iter().filter(|circle| !circle.is_empty());
        found.map(|circle| description(circle, &edges)).collect()
    }

    fn edges(&self) -> Edges<'_> {
        let mut edges = Edges::new();
        for (own, module) in self.modules.iter().enumerate() {
            let imports = module.code.uses.iter().filter(|used| !used.is_public);
            for path in imports.map(|used| &used.path).chain(&module.code.paths) {
                let Some((other, Some(item))) = self.find(own, &path.words, &mut HashSet::new()) else {
                    continue;
                };
                let other = self.modules[other].file;
                if other != module.file {
                    let items = edges.entry(module.file).or_default().entry(other).or_default();
                    items.entry(item).or_insert(path);
                }
            }
        }
        edges
    }

    /// Returns the module that a path of this module leads to, and the item of that module that the
    /// path names, if it names one. Returns nothing if the path leads into another crate.
    fn find(&self, own: usize, path: &[String], seen: &mut HashSet<(usize, String)>) -> Option<(usize, Option<&str>)> {
        let Some((word, rest)) = path.split_first() else {
            return Some((own, None));
        };
        let module = &self.modules[own];
        let next = match word.as_str() {
            "crate" => Some(0),
            "self" => Some(own),
            "super" => Some(module.parent?),
            // A function may have the name of a module, but no path leads through a function.
            child => module.children.get(child).copied().filter(|_| !rest.is_empty()),
        };
        if let Some(next) = next {
            return self.find(next, rest, seen);
        }
        if let Some(item) = module.code.items.get(word) {
            return Some((own, Some(item)));
        }
        let is_new = seen.insert((own, word.clone()));
        let found = module.code.uses.iter().filter(|_| is_new).find_map(|used| {
            if used.name == *word {
                self.find(own, &[&used.path.words, rest].concat(), seen)
            } else if used.name == "*"
                && let (other, None) = self.find(own, &used.path.words, seen)?
            {
                self.find(other, path, seen)
            } else {
                None
            }
        });
        found.or_else(|| Some((*module.children.get(word)?, None)))
    }
}

/// Returns all files that this one depends on, directly or through others.
fn files_below<'a>(edges: &Edges<'a>, file: &'a str) -> BTreeSet<&'a str> {
    let (mut found, mut open) = (BTreeSet::new(), vec![file]);
    while let Some(file) = open.pop() {
        let next = edges.get(file).into_iter().flat_map(BTreeMap::keys);
        open.extend(next.filter(|next| found.insert(**next)));
    }
    found
}

fn description(circle: &[&str], edges: &Edges<'_>) -> Finding {
    let (folder, _) = circle[0].split_once("/src/").expect("it is in src");
    let module = |file: &str| {
        file[folder.len() + "/src/".len()..]
            .trim_end_matches(".rs")
            .replace('/', "::")
    };
    let modules: Vec<_> = circle.iter().map(|file| module(file)).collect();
    let mut text = format!("{folder}: a circle of {} files: {}", circle.len(), modules.join(", "));
    for file in circle {
        for (other, items) in edges[file].iter().filter(|(other, _)| circle.contains(other)) {
            for Path { words, line } in items.values() {
                text += &format!("\n    {file}:{line}: uses {}: {}", module(other), words.join("::"));
            }
        }
    }
    text
}

/// A token of Rust, or a group in brackets.
#[derive(Clone)]
struct Token {
    /// For a group the opening bracket.
    text: String,
    line: usize,
    group: Vec<Token>,
}

fn tokens(code: TokenStream) -> Vec<Token> {
    let token = |tree: TokenTree| Token {
        text: match &tree {
            TokenTree::Group(group) => match group.delimiter() {
                Delimiter::Parenthesis => "(".into(),
                Delimiter::Bracket => "[".into(),
                Delimiter::Brace => "{".into(),
                Delimiter::None => String::new(),
            },
            tree => tree.to_string(),
        },
        line: tree.span().start().line,
        group: match tree {
            TokenTree::Group(group) => tokens(group.stream()),
            _ => Vec::new(),
        },
    };
    code.into_iter().map(token).collect()
}

fn texts(tokens: &[Token]) -> Vec<&str> {
    tokens.iter().map(|token| token.text.as_str()).collect()
}

impl Code {
    /// Reads the tokens of the module, or of a group within it.
    fn read(&mut self, tokens: &[Token], is_module: bool) {
        let texts = texts(tokens);
        let mut at = 0;
        while at < tokens.len() {
            let next = at + 1;
            at += match (&texts[..at], &texts[at..]) {
                (_, ["#", "[", item @ ..]) if is_test(&tokens[next].group) => 2 + length_of_item(item),
                (before, ["use", ..]) => {
                    let length = texts[next..].iter().take_while(|text| **text != ";").count();
                    let is_public = matches!(before, [.., "pub"] | [.., "pub", "("]);
                    self.add_uses(&tokens[next..next + length], &[], is_public);
                    1 + length
                }
                (_, ["mod", name, ..]) => {
                    let inline = tokens.get(next + 1).filter(|body| body.text == "{");
                    self.modules
                        .push(((*name).into(), inline.map(|body| body.group.clone())));
                    3
                }
                (
                    [
                        ..,
                        "fn" | "struct" | "enum" | "union" | "const" | "static" | "type" | "trait",
                    ],
                    [name, ..],
                ) if is_module => {
                    self.items.insert((*name).into());
                    1
                }
                (_, ["(" | "[" | "{", ..]) => {
                    self.read(&tokens[at].group, false);
                    1
                }
                // A field or a method, but not the end of a range.
                ([before @ .., "."], _) if !before.ends_with(&["."]) => 1,
                // The rest of a path that starts with types.
                ([.., ":", ":"], _) => 1,
                (_, path) => {
                    let words = words_of_path(path);
                    let length = (3 * words.len()).saturating_sub(2).max(1);
                    let line = tokens[at].line;
                    self.paths.push(Path { words, line });
                    length
                }
            };
        }
    }

    /// Adds the trees of a `use` line, whose names are below a path.
    fn add_uses(&mut self, trees: &[Token], above: &[String], is_public: bool) {
        for tree in trees.split(|token| token.text == ",") {
            let Some(last) = tree.last() else { continue };
            let names = tree.iter().filter(|token| is_name(&token.text) && token.text != "as");
            let mut words: Vec<_> = above
                .iter()
                .cloned()
                .chain(names.map(|token| token.text.clone()))
                .collect();
            if last.text == "{" {
                self.add_uses(&last.group, &words, is_public);
                continue;
            }
            if texts(tree).contains(&"as") || (last.text == "self" && words.len() > 1) {
                words.pop();
            }
            let name = if last.text == "self" { words.last() } else { None }
                .unwrap_or(&last.text)
                .clone();
            self.uses.push(Use {
                path: Path { words, line: last.line },
                name,
                is_public,
            });
        }
    }
}

fn is_name(text: &str) -> bool {
    text.starts_with(|first: char| first.is_alphabetic() || first == '_')
}

/// Returns the words of the path at the start, or nothing if there is no path.
fn words_of_path(mut texts: &[&str]) -> Vec<String> {
    let mut words = Vec::new();
    while let [word, rest @ ..] = texts
        && is_name(word)
    {
        words.push((*word).into());
        let [":", ":", below @ ..] = rest else { break };
        texts = below;
    }
    words
}

/// Returns whether an attribute means that only tests have the item.
fn is_test(attribute: &[Token]) -> bool {
    let [cfg, condition] = attribute else { return false };
    cfg.text == "cfg"
        && match texts(&condition.group)[..] {
            ["all", _] => texts(&condition.group[1].group).contains(&"test"),
            ref words => words == ["test"],
        }
}

/// Returns the number of tokens of the item, field or statement at the start.
fn length_of_item(texts: &[&str]) -> usize {
    let mut is_item = false;
    let ends = |text: &&str| {
        is_item |= matches!(*text, "fn" | "struct" | "enum" | "impl" | "trait" | "type");
        matches!(*text, "{" | ";") || (*text == "," && !is_item)
    };
    texts.iter().position(ends).map_or(texts.len(), |last| last + 1)
}
