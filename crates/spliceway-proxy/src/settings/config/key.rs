//! What the declaration of a key says: its flag, its help, its default, and which services have it.

use clap::{Arg, ArgAction, ArgMatches};

use super::value::{Form, List, Value, Word, one_of_several};
use super::values::KindArg;

/// The declaration of one key.
pub(crate) struct Key {
    /// The path of its table.
    pub(crate) table: &'static str,
    pub(crate) name: &'static str,
    pub(super) help: &'static str,
    /// The name with `-` for `_`.
    pub(super) kebab: &'static str,
    pub(super) flag: FlagSpec,
    /// Sets what the type of the value means for the flag.
    pub(super) of_type: fn(Arg) -> Arg,
}

/// The flag of a key, and the services that have the key.
#[derive(Clone, Copy)]
pub(super) struct FlagSpec {
    /// Whether there is a flag. Only files have the other keys.
    exists: bool,
    /// None means all kinds.
    kinds: &'static [KindArg],
    /// The name, if it is not that of the key.
    long: Option<&'static str>,
    heading: Option<&'static str>,
    value: Option<&'static str>,
    /// Whether `-h` omits the flag.
    is_rare: bool,
    required: Option<&'static str>,
    more: fn(Arg, KindArg) -> Arg,
}

impl FlagSpec {
    /// A flag of all services.
    pub(super) const ANY: Self = Self {
        exists: true,
        ..Self::NONE
    };

    pub(super) const NONE: Self = Self {
        exists: false,
        kinds: &[],
        long: None,
        heading: None,
        value: None,
        is_rare: false,
        required: None,
        more: |arg, _| arg,
    };

    /// Limits the key to services of these kinds.
    pub(super) const fn only_for(self, kinds: &'static [KindArg]) -> Self {
        Self { kinds, ..self }
    }

    pub(super) const fn under(self, heading: &'static str) -> Self {
        Self {
            heading: Some(heading),
            ..self
        }
    }

    pub(super) const fn named(self, long: &'static str) -> Self {
        Self {
            long: Some(long),
            ..self
        }
    }

    pub(super) const fn takes(self, value: &'static str) -> Self {
        Self {
            value: Some(value),
            ..self
        }
    }

    /// Hides the flag from `-h`.
    pub(super) const fn rare(self) -> Self {
        Self { is_rare: true, ..self }
    }

    /// The flag that must be given too.
    pub(super) const fn requires(self, flag: &'static str) -> Self {
        Self {
            required: Some(flag),
            ..self
        }
    }

    /// Sets what only some flags need.
    pub(super) const fn with(self, more: fn(Arg, KindArg) -> Arg) -> Self {
        Self { more, ..self }
    }
}

impl Key {
    /// Returns the kinds of services that have the key. None means all of them.
    pub(crate) fn kinds(&self) -> &'static [KindArg] {
        self.flag.kinds
    }

    /// Returns whether services of this kind have the key.
    pub(crate) fn is_of(&self, kind: KindArg) -> bool {
        self.kinds().is_empty() || self.kinds().contains(&kind)
    }

    /// Returns the name of the flag without `--`.
    pub(crate) fn long(&self) -> Option<&'static str> {
        self.flag.exists.then(|| self.flag.long.unwrap_or(self.kebab))
    }

    pub(crate) fn help(&self) -> &'static str {
        self.help.trim_start()
    }

    /// Returns the definition of the flag for services of this kind.
    pub(crate) fn arg(&self, kind: KindArg) -> Option<Arg> {
        let long = self.long()?;
        let arg = Arg::new(long).long(long).help(self.help());
        let mut arg = (self.of_type)(arg).hide_short_help(self.flag.is_rare);
        if let Some(heading) = self.flag.heading {
            arg = arg.help_heading(heading);
        }
        if let Some(value) = self.flag.value {
            arg = arg.value_name(value);
        }
        if let Some(required) = self.flag.required {
            arg = arg.requires(required);
        }
        Some((self.flag.more)(arg, kind))
    }
}

/// The type of a key.
pub(crate) trait Setting: Sized {
    type Parsed;

    /// Sets what the type means for a flag.
    fn arg(arg: Arg) -> Arg {
        arg
    }

    /// Takes the value of a flag. Returns `None` if the flag is not given, or does not exist.
    fn take(_: &mut ArgMatches, _flag: &str) -> Option<Self> {
        None
    }

    /// Returns the offset of the value in the files.
    fn offset(&self) -> Option<usize>;
}

impl<W: Word> Setting for Value<W> {
    type Parsed = W::Parsed;

    fn arg(arg: Arg) -> Arg {
        if W::FORM == Form::Flag {
            return arg.action(ArgAction::SetTrue);
        }
        arg.action(ArgAction::Set).value_parser(W::parser())
    }

    fn take(matches: &mut ArgMatches, flag: &str) -> Option<Self> {
        if W::FORM == Form::Flag {
            let is_given = matches.try_remove_one::<bool>(flag).ok()??;
            return is_given.then(|| Self::constant("true"));
        }
        matches.try_remove_one(flag).ok()?
    }

    fn offset(&self) -> Option<usize> {
        self.at()
    }
}

impl<W: Word> Setting for List<W> {
    type Parsed = Vec<W::Parsed>;

    fn arg(arg: Arg) -> Arg {
        arg.action(ArgAction::Append).value_parser(one_of_several::<W>)
    }

    fn take(matches: &mut ArgMatches, flag: &str) -> Option<Self> {
        Self::given(matches.try_remove_many(flag).ok()??.collect())
    }

    fn offset(&self) -> Option<usize> {
        self.at()
    }
}

/// A table of a configuration.
pub(crate) trait Table {
    const KEYS: &[Key];

    /// Takes the values of the flags.
    fn take(&mut self, matches: &mut ArgMatches);

    /// Returns the keys that have a value, with the locations of the values.
    fn given(&self) -> impl Iterator<Item = (&'static Key, Option<usize>)>;

    /// Returns the keys that differ and cannot change at run time.
    fn fixed_differences(&self, other: &Self) -> impl Iterator<Item = &'static str>;
}

/// Returns the name of a flag for the name of a key.
pub(super) const fn kebab<const LENGTH: usize>(key: &str) -> [u8; LENGTH] {
    let (key, mut flag, mut at) = (key.as_bytes(), [0; LENGTH], 0);
    while at < LENGTH {
        flag[at] = if key[at] == b'_' { b'-' } else { key[at] };
        at += 1;
    }
    flag
}

/// Defines tables. A line declares a key: its help, its type, its default, and its flag. The help
/// does not repeat a default in parentheses. A change of a `fixed` key needs a restart. All keys
/// are optional, and are written only if they have a value.
macro_rules! tables {
    ($($(#[$doc:meta])* $table:ident($path:literal, $expecting:literal) {
        $(
            $(#[doc = $help:literal])*
            $key:ident: $value:ty $(= $default:literal)? $(= ($unsaid:expr))? $(, $fixed:ident)? $(=> $flag:expr)?;
        )+
    })+) => {$(
        $(#[$doc])*
        #[derive(Debug, Clone, Default, PartialEq, Deserialize, Serialize, JsonSchema)]
        #[serde(deny_unknown_fields, default, expecting = $expecting)]
        pub(crate) struct $table {
            $(
                #[serde(skip_serializing_if = "Option::is_none")]
                pub(crate) $key: Option<$value>,
            )+
        }

        impl Table for $table {
            const KEYS: &[Key] = &[$(Key {
                table: $path,
                name: stringify!($key),
                help: concat!("", $($help,)* $(" [default: ", $default, "]")?),
                kebab: {
                    const KEBAB: [u8; stringify!($key).len()] = kebab(stringify!($key));
                    match str::from_utf8(&KEBAB) {
                        Ok(kebab) => kebab,
                        Err(_) => unreachable!(),
                    }
                },
                flag: tables!(@flag $($flag)?),
                of_type: <$value as Setting>::arg,
            }),+];

            fn take(&mut self, matches: &mut ArgMatches) {
                let mut flags = Self::KEYS.iter().map(Key::long);
                $(if let Some(flag) = flags.next().flatten() {
                    self.$key = Setting::take(matches, flag);
                })+
            }

            fn given(&self) -> impl Iterator<Item = (&'static Key, Option<usize>)> {
                let locations = [$(self.$key.as_ref().map(Setting::offset)),+];
                let keys = Self::KEYS.iter().zip(locations);
                keys.filter_map(|(key, location)| Some((key, location?)))
            }

            fn fixed_differences(&self, other: &Self) -> impl Iterator<Item = &'static str> {
                let keys = [$((
                    concat!($path, ".", stringify!($key)),
                    tables!(@differs $($fixed)? self other $key: $value $(= $default)? $(= ($unsaid))?),
                )),+];
                keys.into_iter().filter_map(|(key, differs)| differs.then_some(key))
            }
        }

        impl $table {
            $(tables! { @default $key: $value $(= $default)? $(= ($unsaid))? })+
        }
    )+};
    (@flag) => { FlagSpec::NONE };
    (@flag $flag:expr) => { $flag };
    (@default $key:ident: $value:ty) => {};
    (@default $key:ident: $value:ty = $default:literal) => {
        tables! { @default $key: $value = (<$value>::constant($default).parsed()) }
    };
    (@default $key:ident: $value:ty = ($default:expr)) => {
        pub(crate) fn $key(&self) -> <$value as Setting>::Parsed {
            self.$key.as_ref().map_or_else(|| $default, <$value>::parsed)
        }
    };
    (@differs $a:ident $b:ident $key:ident: $value:ty $(= $default:tt)?) => {{
        let _ = ($a, $b);
        false
    }};
    (@differs fixed $a:ident $b:ident $key:ident: $value:ty) => {
        $a.$key.as_ref().map(<$value>::parsed) != $b.$key.as_ref().map(<$value>::parsed)
    };
    (@differs fixed $a:ident $b:ident $key:ident: $value:ty = $default:tt) => { $a.$key() != $b.$key() };
}
pub(super) use tables;
