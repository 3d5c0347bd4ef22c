//! A value of a setting: the text that the operator wrote, what it means, and where it is.

use std::fmt;
use std::marker::PhantomData;
use std::ops::Deref;
use std::str::FromStr;

use clap::builder::ValueParser;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::de::{Error as _, Expected, MapAccess, SeqAccess, Unexpected, Visitor};
use serde::ser::SerializeSeq;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use toml::Spanned;

/// The kind of value that a key and a flag take. The command line and files parse it by the same
/// function.
pub(crate) trait Word: Sized + 'static {
    type Parsed: Clone + Send + Sync + 'static;
    /// How a file writes the value.
    const FORM: Form;

    /// # Errors
    /// Returns a message that describes the expected form.
    fn parse(text: &str) -> Result<Self::Parsed, String>;

    /// Returns the parser of flags.
    fn parser() -> ValueParser {
        ValueParser::new(str::parse::<Value<Self>>)
    }

    /// The values, if there are only a few.
    fn choices() -> Vec<String> {
        Vec::new()
    }

    /// The environment variable that holds the value if it has a secret in it. A secret is never
    /// printed.
    fn variable(_parsed: &Self::Parsed) -> Option<&'static str> {
        None
    }
}

/// How a file writes a value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Form {
    /// A string.
    Text,
    /// A string that contains a secret. A file must take it from the environment.
    Secret,
    /// An integer, or a string that holds one.
    Number,
    /// `true` or `false`.
    Flag,
    /// `true`, `false`, or a string.
    FlagOrText,
}

/// A value of kind `W`.
pub(crate) struct Value<W: Word> {
    text: Box<str>,
    parsed: W::Parsed,
    /// The offset in the files that were read. `None` on the command line.
    at: Option<usize>,
}

/// Several values. A file writes an array, or one string with spaces between the values.
pub(crate) struct List<W: Word>(Vec<Value<W>>);

/// Parses a value on the command line.
impl<W: Word> FromStr for Value<W> {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Ok(Self {
            parsed: W::parse(text)?,
            text: text.into(),
            at: None,
        })
    }
}

impl<W: Word> Value<W> {
    /// Returns the value of a constant text.
    pub(super) fn constant(text: &'static str) -> Self {
        text.parse().expect("the text of a valid value")
    }

    pub(crate) fn parsed(&self) -> W::Parsed {
        self.parsed.clone()
    }

    pub(crate) fn text(&self) -> &str {
        &self.text
    }

    /// Returns the value as one of another kind, which has a parser that accepts it.
    pub(super) fn retyped<V: Word<Parsed = W::Parsed>>(self) -> Value<V> {
        Value {
            text: self.text,
            parsed: self.parsed,
            at: self.at,
        }
    }

    /// Returns the offset of the value in the files, or `None` on the command line.
    pub(crate) fn at(&self) -> Option<usize> {
        self.at
    }
}

impl<W: Word> List<W> {
    /// Returns the values that a flag was given, or `None` if it was not given.
    pub(super) fn given(values: Vec<Value<W>>) -> Option<Self> {
        (!values.is_empty()).then_some(Self(values))
    }

    /// Returns the list with each value changed.
    pub(super) fn map(self, change: impl FnMut(Value<W>) -> Value<W>) -> Self {
        Self(self.0.into_iter().map(change).collect())
    }

    pub(crate) fn parsed(&self) -> Vec<W::Parsed> {
        self.0.iter().map(Value::parsed).collect()
    }

    pub(crate) fn at(&self) -> Option<usize> {
        self.0.first().and_then(Value::at)
    }
}

pub(crate) fn parsed<W: Word>(value: &Option<Value<W>>) -> Option<W::Parsed> {
    value.as_ref().map(Value::parsed)
}

pub(crate) fn or<W: Word>(value: &Option<Value<W>>, default: W::Parsed) -> W::Parsed {
    parsed(value).unwrap_or(default)
}

pub(crate) fn all<W: Word>(list: &Option<List<W>>) -> Vec<W::Parsed> {
    list.as_ref().map(List::parsed).unwrap_or_default()
}

impl<W: Word> Deref for List<W> {
    type Target = [Value<W>];

    fn deref(&self) -> &Self::Target {
        &self.0
    }
}

impl<W: Word> Clone for Value<W> {
    fn clone(&self) -> Self {
        Self {
            text: self.text.clone(),
            parsed: self.parsed.clone(),
            at: self.at,
        }
    }
}

impl<W: Word> Clone for List<W> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

/// Two values are equal if the same text means them, wherever they are.
impl<W: Word> PartialEq for Value<W> {
    fn eq(&self, other: &Self) -> bool {
        self.text == other.text
    }
}

impl<W: Word> PartialEq for List<W> {
    fn eq(&self, other: &Self) -> bool {
        self.0 == other.0
    }
}

/// Shows no secret.
impl<W: Word> fmt::Debug for Value<W> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match W::variable(&self.parsed) {
            Some(variable) => write!(f, "${{{variable}}}"),
            None => self.text.fmt(f),
        }
    }
}

impl<W: Word> fmt::Debug for List<W> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(&self.0).finish()
    }
}

/// Parses one of the values of a flag that may be repeated.
pub(super) fn one_of_several<W: Word>(text: &str) -> Result<Value<W>, String> {
    text.parse::<Value<W>>()
        .map_err(|why| match values_between_commas::<W>(text) {
            Some(values) => format!(
                "commas do not separate values: repeat the flag for each of {}",
                values.join(" ")
            ),
            None => why,
        })
}

/// Returns the values of a list that has commas between them, and cannot be one value.
fn values_between_commas<W: Word>(text: &str) -> Option<Vec<&str>> {
    let between = |letter: char| letter == ',' || letter.is_whitespace();
    let values: Vec<_> = text.split(between).filter(|value| !value.is_empty()).collect();
    // The message shows them.
    let is_shown = |value: &&str| W::parse(value).is_ok_and(|parsed| W::variable(&parsed).is_none());
    (text.contains(',') && values.len() > 1 && values.iter().all(is_shown)).then_some(values)
}

/// Returns what is wrong with the text of a list, which has spaces between the values.
fn wrong_list<W: Word>(text: &str) -> Option<String> {
    let mut words = text.split_whitespace();
    let wrong = words.find_map(|word| match W::parse(word) {
        Err(why) => Some(why),
        Ok(_) if word.ends_with(',') => Some("commas do not separate values: expected spaces, or an array".to_owned()),
        Ok(_) => None,
    })?;
    let values = values_between_commas::<W>(text);
    Some(values.map_or(wrong, |values| {
        format!("commas do not separate values: expected {values:?}")
    }))
}

/// Returns what a parser says about a value of another type, because it says more than the type.
fn expected_text<W: Word, E: serde::de::Error>(text: &str, found: Unexpected<'_>, visitor: &dyn Expected) -> E {
    match W::parse(text) {
        Err(expected) => E::custom(expected),
        Ok(_) => E::invalid_type(found, visitor),
    }
}

impl<'de, W: Word> Deserialize<'de> for Value<W> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let spanned = Spanned::<Scalar<W>>::deserialize(deserializer)?;
        let at = Some(spanned.span().start);
        let Scalar { text, parsed, .. } = spanned.into_inner();
        Ok(Self { text, parsed, at })
    }
}

/// A value whose location is not known yet.
struct Scalar<W: Word> {
    text: Box<str>,
    parsed: W::Parsed,
}

impl<'de, W: Word> Deserialize<'de> for Scalar<W> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(ScalarVisitor(PhantomData))
    }
}

struct ScalarVisitor<W>(PhantomData<W>);

impl<W: Word> Visitor<'_> for ScalarVisitor<W> {
    type Value = Scalar<W>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match W::FORM {
            Form::Text | Form::Secret => "text in quotes",
            Form::Number => "a number",
            Form::Flag => "true or false",
            Form::FlagOrText => "true, false, or text in quotes",
        })
    }

    fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<Self::Value, E> {
        let parsed = W::parse(text).map_err(|why| match values_between_commas::<W>(text) {
            Some(_) => E::custom("commas do not separate values: expected one value between the quotes"),
            None => E::custom(why),
        })?;
        Ok(Scalar {
            text: text.into(),
            parsed,
        })
    }

    fn visit_bool<E: serde::de::Error>(self, value: bool) -> Result<Self::Value, E> {
        match W::FORM {
            Form::Flag | Form::FlagOrText => self.visit_str(flag(value)),
            Form::Text => Err(expected_text::<W, E>(flag(value), Unexpected::Bool(value), &self)),
            _ => Err(E::invalid_type(Unexpected::Bool(value), &self)),
        }
    }

    fn visit_i64<E: serde::de::Error>(self, value: i64) -> Result<Self::Value, E> {
        match W::FORM {
            Form::Number => self.visit_str(&value.to_string()),
            // A time may be 0 without a unit.
            Form::Text if value == 0 && W::parse("0").is_ok() => self.visit_str("0"),
            Form::Text => Err(expected_text::<W, E>(
                &value.to_string(),
                Unexpected::Signed(value),
                &self,
            )),
            _ => Err(E::invalid_type(Unexpected::Signed(value), &self)),
        }
    }
}

impl<'de, W: Word> Deserialize<'de> for List<W> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let spanned = Spanned::<OneOrMany<W>>::deserialize(deserializer)?;
        let at = spanned.span().start;
        let values: Vec<_> = match spanned.into_inner() {
            OneOrMany::Many(values) => values,
            OneOrMany::One(text) => text
                .split_whitespace()
                .map(|text| text.parse::<Value<W>>().map(|value| Value { at: Some(at), ..value }))
                .collect::<Result<_, _>>()
                .map_err(D::Error::custom)?,
        };
        Ok(Self(values))
    }
}

fn flag(value: bool) -> &'static str {
    if value { "true" } else { "false" }
}

enum OneOrMany<W: Word> {
    One(Box<str>),
    Many(Vec<Value<W>>),
}

impl<'de, W: Word> Deserialize<'de> for OneOrMany<W> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(OneOrManyVisitor(PhantomData))
    }
}

struct OneOrManyVisitor<W>(PhantomData<W>);

impl<'de, W: Word> Visitor<'de> for OneOrManyVisitor<W> {
    type Value = OneOrMany<W>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("text in quotes, or an array of it")
    }

    fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<Self::Value, E> {
        // An error here has the location of the value, and not only the location of its key.
        match wrong_list::<W>(text) {
            Some(wrong) => Err(E::custom(wrong)),
            None => Ok(OneOrMany::One(text.into())),
        }
    }

    fn visit_bool<E: serde::de::Error>(self, value: bool) -> Result<Self::Value, E> {
        match W::FORM {
            Form::FlagOrText => self.visit_str(flag(value)),
            Form::Text => Err(expected_text::<W, E>(flag(value), Unexpected::Bool(value), &self)),
            _ => Err(E::invalid_type(Unexpected::Bool(value), &self)),
        }
    }

    fn visit_i64<E: serde::de::Error>(self, value: i64) -> Result<Self::Value, E> {
        Err(expected_text::<W, E>(
            &value.to_string(),
            Unexpected::Signed(value),
            &self,
        ))
    }

    /// A table may say what a list means: `{ "a.example" = "10.0.0.7:443" }`.
    fn visit_map<A: MapAccess<'de>>(self, mut table: A) -> Result<Self::Value, A::Error> {
        let (mut values, mut are_right) = (Vec::new(), true);
        while let Some((key, value)) = table.next_entry::<String, toml::Value>()? {
            let value = value.as_str().unwrap_or_default();
            let both = format!("{key}={value}");
            are_right &= W::parse(&both).is_ok() && W::parse(value).is_err();
            values.push(both);
        }
        Err(if are_right && !values.is_empty() {
            A::Error::custom(format!("this is a table: expected a list, {values:?}"))
        } else {
            A::Error::invalid_type(Unexpected::Map, &self)
        })
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut array: A) -> Result<Self::Value, A::Error> {
        let mut values = Vec::new();
        while let Some(value) = array.next_element()? {
            values.push(value);
        }
        Ok(OneOrMany::Many(values))
    }
}

impl<W: Word> Value<W> {
    /// Returns the text for a file.
    fn printed(&self) -> String {
        match W::variable(&self.parsed) {
            Some(variable) => format!("${{{variable}}}"),
            None => self.text.replace("${", "$${"),
        }
    }
}

impl<W: Word> Serialize for Value<W> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match (W::FORM, self.text.parse::<i64>()) {
            (Form::Flag, _) => serializer.serialize_bool(&*self.text == "true"),
            (Form::FlagOrText, _) if ["true", "false"].contains(&&*self.text) => {
                serializer.serialize_bool(&*self.text == "true")
            }
            (Form::Number, Ok(number)) => serializer.serialize_i64(number),
            _ => serializer.serialize_str(&self.printed()),
        }
    }
}

impl<W: Word> Serialize for List<W> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        // One variable has all values, because it may also be the variable of the flag.
        if let Some(secret) = self.iter().find(|value| W::variable(&value.parsed).is_some()) {
            return secret.serialize(serializer);
        }
        if let (Form::FlagOrText, [one]) = (W::FORM, &**self) {
            return one.serialize(serializer);
        }
        let mut array = serializer.serialize_seq(Some(self.len()))?;
        self.iter().try_for_each(|value| array.serialize_element(value))?;
        array.end()
    }
}

impl<W: Word> JsonSchema for Value<W> {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> std::borrow::Cow<'static, str> {
        std::any::type_name::<W>().into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        const FROM_ENVIRONMENT: &str = r"\$\{";
        match (W::FORM, W::choices()) {
            (Form::Text, choices) if !choices.is_empty() => json_schema!({
                "anyOf": [{"enum": choices}, {"type": "string", "pattern": FROM_ENVIRONMENT}]
            }),
            (Form::Text, _) => json_schema!({"type": ["string", "integer"]}),
            (Form::Secret, _) => json_schema!({"type": "string", "pattern": FROM_ENVIRONMENT}),
            (Form::Number, _) => json_schema!({
                "anyOf": [{"type": "integer", "minimum": 0}, {"type": "string"}]
            }),
            (Form::Flag, _) => json_schema!({
                "anyOf": [{"type": "boolean"}, {"type": "string", "pattern": FROM_ENVIRONMENT}]
            }),
            (Form::FlagOrText, _) => json_schema!({"type": ["boolean", "string"]}),
        }
    }
}

impl<W: Word> JsonSchema for List<W> {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> std::borrow::Cow<'static, str> {
        std::any::type_name::<Self>().into()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        let one = Value::<W>::json_schema(generator);
        match W::FORM {
            Form::FlagOrText => json_schema!({"anyOf": [one.clone(), {"type": "array", "items": one}]}),
            _ => json_schema!({"anyOf": [{"type": "string"}, {"type": "array", "items": one}]}),
        }
    }
}
