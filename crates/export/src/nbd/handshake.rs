//! The fixed newstyle handshake: greeting, client flags, and options until the client chooses an
//! export.

use millpond_block::PAGE;

use crate::{ExportId, ExportInfo, Exports};

use super::context::{self, Context, MAX_CONTEXTS};
use super::encryption::Secrecy;
use super::input::Input;
use super::output::Output;
use super::session::CloseReason;
use super::wire::{self, MAX_STRING, OPTION_HEADER, Style, info, option, reply};

/// Maximum length of option data that is parsed, in bytes: a name, its length, and more information
/// requests than there are kinds.
const MAX_OPTION_DATA: u32 = (MAX_STRING + PAGE) as u32;
/// Maximum length of option data, in bytes, that is discarded so that the refusal can be sent. A
/// client that sends a longer option is disconnected.
const MAX_DRAINED: u32 = 1 << 20;
/// Maximum number of options in a handshake. A client may list the exports and ask about each of
/// thousands.
const MAX_OPTIONS: u32 = 1 << 16;
/// Padding in the answer to EXPORT_NAME.
const ZEROES: [u8; 124] = [0; 124];

/// Result of [`Handshake::run`].
pub(super) enum Step {
    /// All complete options have been answered; more input is needed.
    More,
    /// Too many bytes wait to be sent.
    Stalled,
    /// The session is over.
    Close(CloseReason),
    /// STARTTLS was accepted. Its answer is the last plaintext.
    StartTls,
    /// The client chose an export; requests follow.
    Bound(ExportId, Terms),
}

/// Results of the negotiation besides the export.
#[derive(Default)]
pub(super) struct Terms {
    pub(super) style: Style,
    /// Contexts that block status reports.
    pub(super) contexts: Vec<Context>,
}

/// State of the handshake.
#[derive(Default)]
pub(super) struct Handshake {
    /// The client's flags; `None` until they are received.
    client: Option<ClientFlags>,
    style: Style,
    /// Selected contexts, with the export for which they were selected.
    selected: Option<(ExportId, Vec<Context>)>,
    options: u32,
    drain: Option<Drain>,
    pub(super) secrecy: Secrecy,
    /// True if an option was refused because STARTTLS has to come first.
    pub(super) refused_in_clear: bool,
}

#[derive(Clone, Copy)]
struct ClientFlags {
    fixed: bool,
    no_zeroes: bool,
}

/// Refused option: `left` bytes of data to discard, then the answer.
struct Drain {
    left: u64,
    option: u32,
    answer: u32,
}

impl Handshake {
    pub(super) fn greet(output: &mut Output) {
        output.push(&wire::GREETING_MAGIC.to_be_bytes());
        output.push(&wire::OPTION_MAGIC.to_be_bytes());
        output.push(&(wire::FLAG_FIXED_NEWSTYLE | wire::FLAG_NO_ZEROES).to_be_bytes());
    }

    pub(super) fn is_inside_message(&self) -> bool {
        self.drain.is_some()
    }

    pub(super) fn run(
        &mut self,
        input: &mut Input,
        output: &mut Output,
        exports: &dyn Exports,
        most_unsent: usize,
        shutting_down: bool,
    ) -> Step {
        let client = match self.client {
            Some(client) => client,
            None => match read_client_flags(input) {
                Ok(Some(client)) => *self.client.insert(client),
                Ok(None) => return Step::More,
                Err(reason) => return Step::Close(reason),
            },
        };
        loop {
            if let Some(drain) = &mut self.drain {
                drain.left -= input.skip(drain.left);
                if drain.left > 0 {
                    return Step::More;
                }
                answer(output, drain.option, drain.answer, &[]);
                self.drain = None;
            }
            if output.unsent() > most_unsent {
                return Step::Stalled;
            }
            let step = self.option(client, input, output, exports, shutting_down);
            if let Some(step) = step {
                return step;
            }
        }
    }

    /// Handles one option; returns `None` if another one may follow.
    fn option(
        &mut self,
        client: ClientFlags,
        input: &mut Input,
        output: &mut Output,
        exports: &dyn Exports,
        shutting_down: bool,
    ) -> Option<Step> {
        let mut reader = Reader(input.bytes());
        let Some(magic) = reader.u64() else { return Some(Step::More) };
        if magic != wire::OPTION_MAGIC {
            return Some(Step::Close(CloseReason::OptionMagic(magic)));
        }
        let (Some(number), Some(length)) = (reader.u32(), reader.u32()) else { return Some(Step::More) };
        if !client.fixed && !matches!(number, option::EXPORT_NAME | option::ABORT) {
            return Some(Step::Close(CloseReason::OptionUnanswerable(number)));
        }
        if length > MAX_DRAINED {
            return Some(Step::Close(CloseReason::OptionTooLong(length)));
        }
        if number == option::EXPORT_NAME && length as usize > MAX_STRING {
            return Some(Step::Close(CloseReason::UnknownExport));
        }
        let before_tls = self.secrecy.is_due() && !matches!(number, option::STARTTLS | option::ABORT);
        self.refused_in_clear |= before_tls;
        let refusal = self.refusal(number, length, before_tls, shutting_down);
        let data = match refusal {
            Some(_) => &[][..],
            None => match reader.take(length) {
                Some(data) => data,
                None => return Some(Step::More),
            },
        };
        self.options += 1;
        if self.options > MAX_OPTIONS {
            return Some(Step::Close(CloseReason::TooManyOptions));
        }
        if let Some(answer) = refusal {
            input.consume(OPTION_HEADER);
            self.drain = Some(Drain { left: u64::from(length), option: number, answer });
            return None;
        }
        let step = match number {
            option::EXPORT_NAME if shutting_down => Some(Step::Close(CloseReason::Shutdown)),
            option::EXPORT_NAME if before_tls => Some(Step::Close(CloseReason::TlsRequired)),
            _ => self.carry_out(number, client, data, output, exports),
        };
        input.consume(OPTION_HEADER + length as usize);
        step
    }

    /// Returns the error reply to an option whose data is not read, if it is refused. EXPORT_NAME has
    /// no error reply.
    fn refusal(&self, number: u32, length: u32, before_tls: bool, shutting_down: bool) -> Option<u32> {
        let known = match number {
            option::STARTTLS => self.secrecy != Secrecy::default(),
            _ => matches!(number, option::EXPORT_NAME..=option::LIST | option::INFO..=option::EXTENDED_HEADERS),
        };
        match known {
            _ if shutting_down && number != option::ABORT && number != option::EXPORT_NAME => Some(reply::ERR_SHUTDOWN),
            _ if before_tls && number != option::EXPORT_NAME => Some(reply::ERR_TLS_REQD),
            false => Some(reply::ERR_UNSUP),
            true if length > MAX_OPTION_DATA => Some(reply::ERR_TOO_BIG),
            true => None,
        }
    }

    /// Carries out an option; returns `None` if another one may follow.
    fn carry_out(&mut self, number: u32, client: ClientFlags, data: &[u8], output: &mut Output, exports: &dyn Exports) -> Option<Step> {
        match number {
            option::EXPORT_NAME if self.style == Style::Extended => Some(Step::Close(CloseReason::ExportNameExtended)),
            option::EXPORT_NAME => Some(self.export_name(client, data, output, exports)),
            option::ABORT => {
                if client.fixed {
                    answer(output, number, reply::ACK, &[]);
                }
                Some(Step::Close(CloseReason::Abort))
            }
            option::STARTTLS => self.start_tls(data, output),
            option::LIST => {
                list(data, output, exports);
                None
            }
            option::STRUCTURED_REPLY | option::EXTENDED_HEADERS => {
                self.agree(number, data, output);
                None
            }
            option::LIST_META_CONTEXT | option::SET_META_CONTEXT => {
                self.meta_context(number, data, output, exports);
                None
            }
            _ => {
                let found = self.info_or_go(number, data, output, exports);
                found.filter(|_| number == option::GO).map(|export| Step::Bound(export, self.terms(export)))
            }
        }
    }

    /// Accepts encryption and discards the results of the negotiation so far (INV-NBD-5). Returns
    /// `None` if STARTTLS is refused.
    fn start_tls(&mut self, data: &[u8], output: &mut Output) -> Option<Step> {
        if !data.is_empty() || !self.secrecy.is_offered() {
            let why: &[u8] = if data.is_empty() { b"encryption is in use already" } else { b"the option takes no data" };
            answer(output, option::STARTTLS, reply::ERR_INVALID, &[why]);
            return None;
        }
        answer(output, option::STARTTLS, reply::ACK, &[]);
        let Handshake { client, options, refused_in_clear, .. } = *self;
        *self = Handshake { client, options, refused_in_clear, secrecy: Secrecy::Starting, ..Handshake::default() };
        Some(Step::StartTls)
    }

    /// Changes the reply style.
    fn agree(&mut self, number: u32, data: &[u8], output: &mut Output) {
        if !data.is_empty() {
            return answer(output, number, reply::ERR_INVALID, &[b"the option takes no data"]);
        }
        match (number, self.style) {
            (option::EXTENDED_HEADERS, _) => self.style = Style::Extended,
            (_, Style::Extended) => return answer(output, number, reply::ERR_EXT_HEADER_REQD, &[b"extended headers are in use"]),
            _ => self.style = Style::Structured,
        }
        answer(output, number, reply::ACK, &[]);
    }

    /// Returns true if contexts were selected for this export.
    fn has_contexts(&self, export: ExportId) -> bool {
        self.selected.as_ref().is_some_and(|(of, contexts)| *of == export && !contexts.is_empty())
    }

    /// Returns the results of the negotiation for this export. Contexts that were selected for
    /// another export are discarded.
    fn terms(&mut self, export: ExportId) -> Terms {
        let contexts = self.selected.take().filter(|(of, _)| *of == export).map(|(_, contexts)| contexts);
        Terms { style: self.style, contexts: contexts.unwrap_or_default() }
    }

    /// Handles EXPORT_NAME. The answer has no header; if the export does not exist, the connection
    /// is closed without an answer.
    fn export_name(&mut self, client: ClientFlags, name: &[u8], output: &mut Output, exports: &dyn Exports) -> Step {
        let Some(export) = std::str::from_utf8(name).ok().and_then(|name| exports.find(name)) else {
            return Step::Close(CloseReason::UnknownExport);
        };
        output.push(&export.geometry.size.to_be_bytes());
        output.push(&wire::transmission_flags(&export, self.style, self.has_contexts(export.id)).to_be_bytes());
        if !client.no_zeroes {
            output.push(&ZEROES);
        }
        Step::Bound(export.id, self.terms(export.id))
    }

    /// Answers INFO and GO; returns the export if it exists.
    fn info_or_go(&self, number: u32, data: &[u8], output: &mut Output, exports: &dyn Exports) -> Option<ExportId> {
        let (name, wanted) = match parse_info(data) {
            Ok(parsed) => parsed,
            Err((error, why)) => {
                answer(output, number, error, &[why]);
                return None;
            }
        };
        let Some(export) = exports.find(name) else {
            answer(output, number, reply::ERR_UNKNOWN, &[b"no export of that name"]);
            return None;
        };
        let flags = wire::transmission_flags(&export, self.style, self.has_contexts(export.id));
        answer_infos(number, flags, &export, &wanted, output);
        answer(output, number, reply::ACK, &[]);
        Some(export.id)
    }

    /// Answers LIST_META_CONTEXT and SET_META_CONTEXT. Queries that match no context are ignored.
    fn meta_context(&mut self, number: u32, data: &[u8], output: &mut Output, exports: &dyn Exports) {
        let setting = number == option::SET_META_CONTEXT;
        if setting {
            self.selected = None;
        }
        if self.style == Style::Simple {
            return answer(output, number, reply::ERR_INVALID, &[b"structured replies must be agreed on first"]);
        }
        let (name, queries) = match parse_queries(data) {
            Ok(parsed) => parsed,
            Err((error, why)) => return answer(output, number, error, &[why]),
        };
        let Some(export) = exports.find(name).map(|export| export.id) else {
            return answer(output, number, reply::ERR_UNKNOWN, &[b"no export of that name"]);
        };
        let mut tell = |id: u32, name: &str| answer(output, number, reply::META_CONTEXT, &[&id.to_be_bytes(), name.as_bytes()]);
        if !setting {
            context::list(&queries, export, exports, &mut |name| tell(0, name));
            return answer(output, number, reply::ACK, &[]);
        }
        let mut chosen: Vec<Context> = Vec::new();
        for query in queries {
            let Some(since) = context::select(query, export, exports) else { continue };
            if chosen.iter().any(|known| known.since == since) {
                continue;
            }
            if chosen.len() == MAX_CONTEXTS {
                return answer(output, number, reply::ERR_TOO_BIG, &[b"at most 16 metadata contexts"]);
            }
            let id = chosen.len() as u32 + 1;
            chosen.push(Context { id, since });
            tell(id, query);
        }
        self.selected = Some((export, chosen));
        answer(output, number, reply::ACK, &[]);
    }
}

fn read_client_flags(input: &mut Input) -> Result<Option<ClientFlags>, CloseReason> {
    let Some(flags) = Reader(input.bytes()).u32() else { return Ok(None) };
    let (fixed, no_zeroes) = (u32::from(wire::FLAG_FIXED_NEWSTYLE), u32::from(wire::FLAG_NO_ZEROES));
    if flags & !(fixed | no_zeroes) != 0 {
        return Err(CloseReason::ClientFlags(flags));
    }
    input.consume(4);
    Ok(Some(ClientFlags { fixed: flags & fixed != 0, no_zeroes: flags & no_zeroes != 0 }))
}

fn list(data: &[u8], output: &mut Output, exports: &dyn Exports) {
    if !data.is_empty() {
        return answer(output, option::LIST, reply::ERR_INVALID, &[b"LIST takes no data"]);
    }
    exports.for_each(&mut |export| {
        let name = export.name.as_bytes();
        let length = (name.len() as u32).to_be_bytes();
        answer(output, option::LIST, reply::SERVER, &[&length, name, export.description.as_bytes()]);
    });
    answer(output, option::LIST, reply::ACK, &[]);
}

fn answer_infos(number: u32, flags: u16, export: &ExportInfo, wanted: &Wanted, output: &mut Output) {
    let mut tell = |kind: u16, parts: [&[u8]; 3]| {
        answer(output, number, reply::INFO, &[&kind.to_be_bytes(), parts[0], parts[1], parts[2]]);
    };
    let (size, flags) = (export.geometry.size.to_be_bytes(), flags.to_be_bytes());
    tell(info::EXPORT, [&size, &flags, &[]]);
    if wanted.name {
        tell(info::NAME, [export.name.as_bytes(), &[], &[]]);
    }
    if wanted.description && !export.description.is_empty() {
        tell(info::DESCRIPTION, [export.description.as_bytes(), &[], &[]]);
    }
    // The block size is sent even if the client did not request it, because requests that are not
    // aligned to the sector are refused in any case.
    let minimum = export.geometry.sector.logical();
    tell(
        info::BLOCK_SIZE,
        [&minimum.to_be_bytes(), &wire::ANNOUNCED_PREFERRED_BLOCK.max(minimum).to_be_bytes(), &wire::ANNOUNCED_MAX_PAYLOAD.to_be_bytes()],
    );
}

/// Parses the data of META_CONTEXT options. Layout: name length (4), name, number of queries (4),
/// and for each query its length (4) and its text, which has a namespace and a colon.
fn parse_queries(data: &[u8]) -> Parsed<'_, Vec<&str>> {
    const MALFORMED: (u32, &[u8]) = (reply::ERR_INVALID, b"lengths in the option do not add up");
    const NOT_UTF8: (u32, &[u8]) = (reply::ERR_INVALID, b"a name is not UTF-8");
    let mut reader = Reader(data);
    let length = reader.u32().ok_or(MALFORMED)?;
    let name = reader.take(length).ok_or(MALFORMED)?;
    let count = reader.u32().ok_or(MALFORMED)?;
    // Every query takes at least the 4 bytes of its length.
    if count as usize > reader.0.len() / 4 {
        return Err(MALFORMED);
    }
    let mut queries = Vec::with_capacity(count as usize);
    for _ in 0..count {
        let length = reader.u32().ok_or(MALFORMED)?;
        let query = std::str::from_utf8(reader.take(length).ok_or(MALFORMED)?).map_err(|_| NOT_UTF8)?;
        if !query.contains(':') {
            return Err((reply::ERR_INVALID, b"a query has a namespace and a colon"));
        }
        queries.push(query);
    }
    if !reader.0.is_empty() {
        return Err(MALFORMED);
    }
    Ok((std::str::from_utf8(name).map_err(|_| NOT_UTF8)?, queries))
}

/// Optional information that the client requested.
struct Wanted {
    name: bool,
    description: bool,
}

/// Name of an export and the rest of the data; or the type and text of an error reply.
type Parsed<'a, T> = Result<(&'a str, T), (u32, &'static [u8])>;

/// Parses the data of INFO and GO. Layout: name length (4), name, number of information requests
/// (2), the requests (2 each).
fn parse_info(data: &[u8]) -> Parsed<'_, Wanted> {
    const MALFORMED: (u32, &[u8]) = (reply::ERR_INVALID, b"lengths in the option do not add up");
    let mut reader = Reader(data);
    let length = reader.u32().ok_or(MALFORMED)?;
    if length as usize > MAX_STRING {
        return Err((reply::ERR_TOO_BIG, b"names have at most 4096 bytes"));
    }
    let name = reader.take(length).ok_or(MALFORMED)?;
    let count = reader.u16().ok_or(MALFORMED)?;
    if reader.0.len() != usize::from(count) * 2 {
        return Err(MALFORMED);
    }
    let mut wanted = Wanted { name: false, description: false };
    while let Some(kind) = reader.u16() {
        wanted.name |= kind == info::NAME;
        wanted.description |= kind == info::DESCRIPTION;
    }
    let name = std::str::from_utf8(name).map_err(|_| (reply::ERR_INVALID, &b"the name is not UTF-8"[..]))?;
    Ok((name, wanted))
}

fn answer(output: &mut Output, option: u32, kind: u32, parts: &[&[u8]]) {
    let length: usize = parts.iter().map(|part| part.len()).sum();
    output.push(&wire::OPTION_REPLY_MAGIC.to_be_bytes());
    output.push(&option.to_be_bytes());
    output.push(&kind.to_be_bytes());
    output.push(&(length as u32).to_be_bytes());
    for part in parts {
        output.push(part);
    }
}

/// Decoder of big-endian numbers.
struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn chunk<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (chunk, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(*chunk)
    }

    fn u16(&mut self) -> Option<u16> {
        self.chunk().map(u16::from_be_bytes)
    }

    fn u32(&mut self) -> Option<u32> {
        self.chunk().map(u32::from_be_bytes)
    }

    fn u64(&mut self) -> Option<u64> {
        self.chunk().map(u64::from_be_bytes)
    }

    fn take(&mut self, length: u32) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(usize::try_from(length).ok()?)?;
        self.0 = rest;
        Some(taken)
    }
}

#[cfg(test)]
mod tests;
