//! What the definition of the command line generates: completions, and manual pages with the text
//! of `--help`.

mod config_page;

use clap::Command;
use clap::builder::{PossibleValuesParser, TypedValueParser};
use clap_complete::Shell;
use clap_mangen::Man;
use clap_mangen::roff::{Roff, roman};

const PROGRAM: &str = "spliceway";

/// The lines of the section FILES: in the page of the program and in that of `spliceway run`.
const FILES: [(&str, &str); 2] = [
    (
        "/etc/spliceway/spliceway.toml",
        "what the service of this machine serves",
    ),
    (
        "/run/spliceway/admin.sock",
        "admin socket of that service, for status, top, service, reload and upgrade",
    ),
];

/// Returns the parser of a shell. A test loads the completions of each of them.
pub(super) fn shell() -> impl TypedValueParser<Value = Shell> {
    PossibleValuesParser::new(["bash", "fish", "zsh"]).try_map(|name| name.parse::<Shell>())
}

/// Returns the script that completes command lines in this shell.
pub(super) fn completions(mut program: Command, shell: Shell) -> String {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut program, PROGRAM, &mut script);
    let script = String::from_utf8_lossy(&script).into_owned();
    if shell != Shell::Zsh {
        return script;
    }
    // The library does not escape the name of a value such as `HOST:PORT`, so zsh would run `PORT`.
    let commands = all(&program);
    let names = commands
        .iter()
        .flat_map(|command| command.get_arguments())
        .flat_map(|arg| arg.get_value_names().unwrap_or_default())
        .filter(|name| name.contains(':'));
    names.fold(script, |script, name| {
        script.replace(&format!(":{name}:"), &format!(":{}:", name.replace(':', "\\:")))
    })
}

/// Returns the page of the program.
pub(super) fn page(program: &Command) -> String {
    rendered(built(program))
}

/// Returns the pages of the program, of all commands and of the configuration file, each with its
/// path in a folder of manual pages.
pub(super) fn pages(program: &Command) -> Vec<(String, String)> {
    let program = built(program);
    let commands = all(&program).into_iter().cloned().map(|command| {
        let name = command.get_display_name().unwrap_or(command.get_name()).to_owned();
        (format!("man1/{name}.1"), rendered(command))
    });
    let file = ("man5/spliceway.toml.5".to_owned(), config_page::page(FILES[0]));
    commands.chain(std::iter::once(file)).collect()
}

/// Returns a command and all below it, without hidden ones.
fn all(command: &Command) -> Vec<&Command> {
    let subcommands = command.get_subcommands().filter(|command| !command.is_hide_set());
    std::iter::once(command).chain(subcommands.flat_map(all)).collect()
}

fn built(program: &Command) -> Command {
    let mut program = program.clone().disable_help_subcommand(true);
    program.build();
    program
}

fn rendered(mut command: Command) -> String {
    let usage = command.render_usage().to_string();
    let usage = usage.trim_start_matches("Usage:").trim().to_owned();
    let help = command.get_after_long_help().or(command.get_after_help());
    let end = end(command.get_name(), &help.map(ToString::to_string).unwrap_or_default());
    let command = command
        .override_usage(usage)
        .after_help(None)
        .after_long_help(None)
        // The library omits the help of an option that `-h` hides.
        .mut_args(|arg| arg.hide_short_help(false));
    let mut page = Vec::new();
    let man = Man::new(command)
        // roff would omit an empty date, and take the next value for it.
        .date(" ")
        .source(concat!("spliceway ", env!("CARGO_PKG_VERSION")))
        .manual("User Commands");
    // A write to memory cannot fail.
    let _ = man.render(&mut page);
    String::from_utf8_lossy(&page).into_owned() + &end
}

/// Returns the sections of a page that the library does not know. Each block of the help that has a
/// heading is a section. The other blocks are notes.
fn end(name: &str, help: &str) -> String {
    let mut roff = Roff::new();
    let mut notes = Vec::new();
    for block in help.split("\n\n").filter(|block| !block.is_empty()) {
        let Some((heading, lines)) = block.split_once(":\n  ") else {
            notes.push(block.replace('\n', " "));
            continue;
        };
        let heading = match heading {
            "Exit codes" => "EXIT STATUS".to_owned(),
            heading => heading.to_uppercase(),
        };
        roff.control("SH", [&*heading]).control("nf", []);
        for line in lines.split("\n  ") {
            // The help of a command omits the name of the program, because its lines are short.
            let is_short = name != PROGRAM && line.starts_with(&format!("{name} "));
            let program = if is_short { "spliceway " } else { "" };
            roff.text([roman(format!("{program}{line}"))]);
        }
        roff.control("fi", []);
    }
    for (index, note) in notes.into_iter().enumerate() {
        let (control, value) = if index == 0 {
            ("SH", Some("NOTES"))
        } else {
            ("PP", None)
        };
        roff.control(control, value).text([roman(note)]);
    }
    if matches!(name, PROGRAM | "run") {
        roff.control("SH", ["FILES"]);
        for (path, meaning) in FILES {
            roff.control("TP", []).text([roman(path)]).text([roman(meaning)]);
        }
    }
    let others = match name {
        PROGRAM => "spliceway.toml(5), splice(2), systemd.socket(5)",
        "run" | "check" | "schema" | "print-config" => "spliceway(1), spliceway.toml(5)",
        _ => "spliceway(1)",
    };
    roff.control("SH", ["SEE ALSO"]).text([roman(others)]);
    roff.to_roff()
}
