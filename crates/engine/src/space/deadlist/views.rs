//! Views: groups of some dozens of spans, and the births that a list shows of them.
//!
//! A list of an aged TiB has tens of thousands of spans, and to cut each of them, the beginning of
//! an epoch has to be searched in its piece. So a split does not cut: the two lists share the
//! spans, and each narrows the births that it shows of them. Later the views are cut one by one,
//! each once: when they are used, when a checkpoint writes the list, or in slices of turns
//! ([`Pieces::cut_some`]).
//!
//! INV-DEAD-6: a list is what its views show, whether they are cut or not. So nothing has to wait
//! for the cutting, and no checkpoint stores that it is still to be done: directories contain the
//! spans as they are when cut.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use millpond_format::{Epoch, PieceRef};

use crate::Planted;
use crate::space::pieces::{Piece, Pieces};

/// Cost of searching the beginning of an epoch: the bytes that could be encoded in that time,
/// about.
const SEARCH_BYTES: usize = 1 << 10;

/// A window of a piece.
#[derive(Clone, Debug)]
pub(crate) struct Span {
    pub(super) piece: Rc<Piece>,
    /// Its first entry; the entries before it were freed or belong to other lists.
    pub(super) from: u32,
    pub(super) to: u32,
    /// Units of data in the piece before its first entry, and before its end.
    pub(super) units_from: u64,
    pub(super) units_to: u64,
    /// True when its content could not be read, and was not read since.
    pub(super) missed: bool,
}

impl Span {
    pub(super) fn whole(piece: Rc<Piece>) -> Span {
        Span { from: 0, to: piece.len(), units_from: 0, units_to: piece.units(), missed: false, piece }
    }

    pub(super) fn units(&self) -> u64 {
        self.units_to - self.units_from
    }

    pub(super) fn units_after(&self, epoch: Epoch) -> u64 {
        self.units_to - self.cut(epoch).1
    }

    /// Returns the first entry born after `epoch`, or the end, and the units of data in the piece
    /// before it.
    fn cut(&self, epoch: Epoch) -> (u32, u64) {
        let (first, units) = self.piece.first_after(epoch);
        if first <= self.from {
            (self.from, self.units_from)
        } else if first >= self.to {
            (self.to, self.units_to)
        } else {
            (first, units)
        }
    }

    /// Returns its part with these births, if there is any.
    fn narrowed(&self, births: Births) -> Option<Span> {
        let (from, units_from) = births.first.checked_sub(1).map_or((self.from, self.units_from), |before| self.cut(Epoch(before)));
        let (to, units_to) = if births.last == Births::NO_LAST { (self.to, self.units_to) } else { self.cut(Epoch(births.last)) };
        (from < to).then(|| Span { piece: Rc::clone(&self.piece), from, to, units_from, units_to, missed: self.missed })
    }

    /// Returns the reference to it for a directory.
    pub(super) fn reference(&self) -> PieceRef {
        let at = self.piece.stored().expect("INV-DEAD-3: a checkpoint writes pieces before the lists that refer to them");
        PieceRef { at, from: self.from, to: self.to }
    }
}

/// Epochs from the first to the last.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Births {
    first: u64,
    last: u64,
}

impl Births {
    /// Last of births without an upper bound.
    const NO_LAST: u64 = u64::MAX;
    const ALL: Births = Births { first: 0, last: Births::NO_LAST };

    /// Returns the births up to `epoch`, and those after it.
    fn split_after(self, epoch: Epoch) -> [Option<Births>; 2] {
        let older = Births { last: self.last.min(epoch.0), ..self };
        let younger = Births { first: self.first.max(epoch.0.saturating_add(1)), ..self };
        [older, younger].map(|births| Some(births).filter(|births| births.first <= births.last))
    }
}

/// A group of spans, and the births that it shows. All lists that share a view share its cutting,
/// too.
#[derive(Clone, Debug)]
pub(crate) struct View {
    /// Shared with the views of other lists until they are cut.
    spans: RefCell<Rc<Vec<Span>>>,
    /// Births to which the spans are still to be cut; `None` when they are cut.
    births: Cell<Option<Births>>,
}

impl View {
    fn new(spans: Vec<Span>) -> View {
        View { spans: RefCell::new(Rc::new(spans)), births: Cell::new(None) }
    }

    /// True when the spans are exactly those that it shows.
    pub(crate) fn is_cut(&self) -> bool {
        self.births.get().is_none()
    }

    /// Maximum number of spans that it shows.
    fn most(&self) -> usize {
        self.spans.borrow().len()
    }

    /// Cuts the spans if necessary, and returns those that it shows.
    pub(crate) fn cut(&self) -> Rc<Vec<Span>> {
        if let Some(births) = self.births.take() {
            let whole = Rc::clone(&self.spans.borrow());
            let spared = whole.last().filter(|span| span.piece.planted(Planted::CutShort)).map(|_| whole.len() - 1);
            let cut = whole.iter().enumerate();
            let cut = cut.filter_map(|(nth, span)| if Some(nth) == spared { Some(span.clone()) } else { span.narrowed(births) });
            self.spans.replace(Rc::new(cut.collect()));
        }
        Rc::clone(&self.spans.borrow())
    }

    /// Cuts the spans if necessary, and returns them for changing.
    fn cut_mut(&mut self) -> &mut Vec<Span> {
        drop(self.cut());
        Rc::make_mut(self.spans.get_mut())
    }

    /// True when it is known to show nothing.
    fn is_empty(&self) -> bool {
        self.is_cut() && self.most() == 0
    }

    /// Returns views of the births up to `epoch`, and of those after it.
    fn split_after(&self, epoch: Epoch) -> [Option<View>; 2] {
        let births = self.births.get().unwrap_or(Births::ALL).split_after(epoch);
        births.map(|births| Some(View { spans: self.spans.clone(), births: Cell::new(Some(births?)) }))
    }
}

/// A directory that is being encoded.
#[derive(Debug, Default)]
pub(crate) struct Encoding {
    pub(super) pieces: Vec<PieceRef>,
    /// Number of views that are in it.
    views: usize,
}

/// The spans of a list.
#[derive(Clone, Debug, Default)]
pub(super) struct Views {
    views: Vec<Rc<View>>,
    /// Number of all spans, if it was counted when all views were cut.
    counted: Cell<Option<usize>>,
}

impl Views {
    /// Adds a span, to the last view unless that has `full` spans.
    pub(super) fn push(&mut self, span: Span, full: usize) {
        self.count(1);
        match self.views.last_mut().filter(|view| view.is_cut() && view.most() < full) {
            Some(view) => Rc::make_mut(view).cut_mut().push(span),
            None => self.views.push(Rc::new(View::new(vec![span]))),
        }
    }

    /// Adds spans that are freed after all others.
    pub(super) fn add_last(&mut self, spans: Vec<Span>) {
        self.count(spans.len());
        self.views.insert(0, Rc::new(View::new(spans)));
    }

    /// Removes and returns what was born after `epoch`. Registers the new views with `pieces` for
    /// cutting.
    pub(super) fn split_after(&mut self, epoch: Epoch, pieces: &Pieces) -> Views {
        let (mut older, mut younger) = (Views::default(), Views::default());
        for view in std::mem::take(&mut self.views).into_iter().filter(|view| !view.is_empty()) {
            for (part, list) in view.split_after(epoch).into_iter().zip([&mut older, &mut younger]) {
                let Some(part) = part.map(Rc::new) else { continue };
                pieces.cut_later(&part);
                list.views.push(part);
            }
        }
        *self = older;
        younger
    }

    /// Adds all of `other`. The two views where the lists meet are joined if they are cut and have
    /// at most `full` spans.
    pub(super) fn append(&mut self, mut other: Views, full: usize) {
        if other.views.len() > self.views.len() {
            std::mem::swap(self, &mut other);
        }
        self.counted.set(self.counted.get().zip(other.counted.get()).map(|(all, more)| all + more));
        if let (Some(view), Some(next)) = (self.views.last_mut(), other.views.last())
            && view.is_cut()
            && next.is_cut()
            && view.most() + next.most() <= full
        {
            Rc::make_mut(view).cut_mut().extend(next.cut().iter().cloned());
            other.views.pop();
        }
        self.views.append(&mut other.views);
    }

    /// Returns the span that is freed first.
    pub(super) fn last_mut(&mut self) -> Option<&mut Span> {
        while self.views.last().is_some_and(|view| view.cut().is_empty()) {
            self.views.pop();
        }
        Rc::make_mut(self.views.last_mut()?).cut_mut().last_mut()
    }

    /// Removes the span that is freed first.
    pub(super) fn pop(&mut self) -> Option<Span> {
        self.last_mut()?;
        self.counted.set(self.counted.get().map(|counted| counted - 1));
        Rc::make_mut(self.views.last_mut()?).cut_mut().pop()
    }

    /// Drops a span, or a whole view that other lists share. True when nothing else refers to the
    /// piece; `None` when no span is left.
    pub(super) fn drop_last(&mut self) -> Option<bool> {
        self.counted.set(None);
        let view = self.views.last_mut()?;
        let own = (Rc::strong_count(view) == 1).then(|| Rc::make_mut(view)).and_then(|view| Rc::get_mut(view.spans.get_mut()));
        let span = own.and_then(Vec::pop);
        if span.is_none() {
            self.views.pop();
        }
        Some(span.is_some_and(|span| Rc::strong_count(&span.piece) == 1))
    }

    /// Returns the same spans, with views that are cut separately.
    #[cfg(test)]
    pub(super) fn apart(&self) -> Views {
        Views { views: self.views.iter().map(|view| Rc::new(View::clone(view))).collect(), counted: self.counted.clone() }
    }

    /// Number of views that a split, a merge and a copy process.
    #[cfg(test)]
    pub(super) fn views(&self) -> usize {
        self.views.len()
    }

    /// Spans, those that are freed first before the others.
    pub(super) fn last_first(&self) -> impl Iterator<Item = Span> {
        self.views.iter().rev().flat_map(|view| {
            let spans = view.cut();
            (0..spans.len()).rev().filter_map(move |nth| spans.get(nth).cloned())
        })
    }

    /// Pieces that the views may show.
    pub(super) fn pieces(&self) -> impl Iterator<Item = Rc<Piece>> {
        self.views.iter().flat_map(|view| {
            let spans = Rc::clone(&view.spans.borrow());
            (0..spans.len()).filter_map(move |nth| spans.get(nth).map(|span| Rc::clone(&span.piece)))
        })
    }

    pub(super) fn is_empty(&self) -> bool {
        self.views.iter().all(|view| view.is_empty())
    }

    /// True when all views are cut.
    pub(super) fn is_cut(&self) -> bool {
        self.views.iter().all(|view| view.is_cut())
    }

    /// Maximum number of spans: some spans of a view that is not cut may belong to another list.
    pub(super) fn most(&self) -> usize {
        self.counted.get().unwrap_or_else(|| {
            let most = self.views.iter().map(|view| view.most()).sum();
            self.counted.set(Some(most).filter(|_| self.is_cut()));
            most
        })
    }

    /// Adds to the number of spans.
    fn count(&self, more: usize) {
        self.counted.set(self.counted.get().map(|counted| counted + more));
    }

    pub(super) fn units(&self) -> u64 {
        self.views.iter().map(|view| view.cut().iter().map(Span::units).sum::<u64>()).sum()
    }

    pub(super) fn units_after(&self, epoch: Epoch) -> u64 {
        self.views.iter().map(|view| view.cut().iter().map(|span| span.units_after(epoch)).sum::<u64>()).sum()
    }

    /// Encodes a view. Returns the cost, as the bytes that could be encoded in that time; `None`
    /// when all views are encoded.
    pub(super) fn encode_some(&self, encoding: &mut Encoding) -> Option<usize> {
        let view = self.views.get(encoding.views)?;
        encoding.views += 1;
        let each = if view.is_cut() { PieceRef::BYTES } else { SEARCH_BYTES };
        let work = 1 + view.most() * each;
        encoding.pieces.extend(view.cut().iter().map(Span::reference));
        Some(work)
    }
}
