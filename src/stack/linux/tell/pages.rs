//! Bytes of a file or of memory that are read page by page, when they are first needed: debug info of hundreds of megabytes
//! is looked up in a few. Nothing is mapped: a file that is cut short meanwhile would end the process.

mod limits;

use crate::stack::machine::memory;
use gimli::{Error, LittleEndian, ReaderOffsetId};
use limits::Limits;
use std::borrow::Cow;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

const PAGE: usize = 4096;

/// Longer files are not read: the table of their pages alone would take megabytes.
const LONGEST: u64 = 4 << 30;

/// How many more bytes may be held. Several files can share one.
#[derive(Debug, Clone)]
pub(crate) struct Allowance(Arc<AtomicUsize>);

impl Allowance {
    pub(crate) fn new(bytes: usize) -> Self {
        Self(Arc::new(AtomicUsize::new(bytes)))
    }

    pub(crate) fn take(&self, bytes: usize) -> bool {
        // Relaxed: a count that orders nothing.
        self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(bytes)).is_ok()
    }

    pub(crate) fn give_back(&self, bytes: usize) {
        // Relaxed: a count that orders nothing.
        self.0.fetch_add(bytes, Ordering::Relaxed);
    }

    pub(crate) fn is_below(&self, bytes: usize) -> bool {
        // Relaxed: a count that orders nothing.
        self.0.load(Ordering::Relaxed) < bytes
    }
}

#[derive(Debug)]
pub(crate) enum Source {
    /// This process, from an address on.
    Memory(u64),
    File(File),
    #[cfg(test)]
    Copied(Vec<u8>),
    /// Another, in which some bytes are not as they should be.
    #[cfg(test)]
    Damaged(super::damage::Damaged),
    /// Whoever reads it has a fault.
    #[cfg(test)]
    Panics,
}

impl Source {
    pub(crate) fn read(&self, at: u64, into: &mut [u8]) -> Option<()> {
        match self {
            Self::Memory(start) => memory::read_all(start.checked_add(at)?, into),
            Self::File(file) => file.read_exact_at(into, at).ok(),
            #[cfg(test)]
            Self::Damaged(damaged) => damaged.read(at, into),
            #[cfg(test)]
            Self::Panics => panic!("a fault of whoever reads this"),
            #[cfg(test)]
            Self::Copied(bytes) => {
                let at = usize::try_from(at).ok()?;
                into.copy_from_slice(bytes.get(at..at.checked_add(into.len())?)?);
                Some(())
            }
        }
    }
}

/// A page as it was read; empty where it could not be.
type Page = OnceLock<Box<[u8]>>;

#[derive(Debug)]
pub(crate) struct Pages {
    source: Source,
    length: u64,
    pages: Box<[Page]>,
    allowance: Allowance,
    limits: Limits,
}

impl Pages {
    pub(crate) fn new(source: Source, length: u64, allowance: &Allowance) -> Option<Self> {
        if length > LONGEST {
            return None;
        }
        let count = usize::try_from(length.div_ceil(PAGE as u64)).ok()?;
        if !allowance.take(count * size_of::<Page>()) {
            return None;
        }
        let pages = std::iter::repeat_with(Page::new).take(count).collect();
        Some(Self { source, length, pages, allowance: allowance.clone(), limits: Limits::none() })
    }

    /// Bytes that are there already.
    #[cfg(test)]
    pub(crate) fn copied(bytes: Vec<u8>) -> Option<Self> {
        let length = bytes.len() as u64;
        Self::new(Source::Copied(bytes), length, &Allowance::new(usize::MAX))
    }

    pub(crate) fn length(&self) -> u64 {
        self.length
    }

    fn page(&self, number: usize) -> Option<&[u8]> {
        let page = self.pages.get(number)?.get_or_init(|| {
            let at = number as u64 * PAGE as u64;
            let length = usize::try_from(self.length - at).unwrap_or(PAGE).min(PAGE);
            if !self.allowance.take(PAGE) {
                return Box::default();
            }
            let mut bytes = vec![0; length].into_boxed_slice();
            match self.source.read(at, &mut bytes) {
                Some(()) => bytes,
                None => {
                    self.allowance.give_back(PAGE);
                    Box::default()
                }
            }
        });
        (!page.is_empty()).then_some(&**page)
    }

    /// Reads debug info, and gives up what would lead too far or too deep: then there is an error for each [`Bytes`].
    pub(crate) fn within_limits<T>(&self, read: impl FnOnce() -> T) -> T {
        self.limits.start();
        let answer = read();
        self.limits.stop();
        answer
    }

    /// What can be had in one piece from there on.
    fn piece(&self, at: u64) -> Option<&[u8]> {
        let page = self.page(usize::try_from(at / PAGE as u64).ok()?)?;
        page.get((at % PAGE as u64) as usize..).filter(|piece| !piece.is_empty())
    }

    pub(crate) fn read(&self, mut at: u64, mut into: &mut [u8]) -> Option<()> {
        while !into.is_empty() {
            let piece = self.piece(at)?;
            let count = piece.len().min(into.len());
            let (now, later) = into.split_at_mut(count);
            now.copy_from_slice(&piece[..count]);
            into = later;
            at = at.checked_add(count as u64)?;
        }
        Some(())
    }

    /// Reads without keeping anything: for what is gone through once.
    pub(crate) fn read_once(&self, at: u64, into: &mut [u8]) -> Option<()> {
        if at.checked_add(into.len() as u64)? > self.length {
            return None;
        }
        self.source.read(at, into)
    }

    pub(crate) fn array<const N: usize>(&self, at: u64) -> Option<[u8; N]> {
        let mut bytes = [0; N];
        self.read(at, &mut bytes)?;
        Some(bytes)
    }

    /// What stands there up to a zero byte, or as much of it as is wanted at most.
    pub(crate) fn text(&self, at: u64, most: usize) -> Option<String> {
        let mut text = Vec::new();
        while text.len() < most {
            let piece = self.piece(at.checked_add(text.len() as u64)?)?;
            let end = piece.iter().position(|&byte| byte == 0);
            text.extend_from_slice(&piece[..end.unwrap_or(piece.len())]);
            if end.is_some() {
                break;
            }
        }
        text.truncate(most);
        Some(String::from_utf8_lossy(&text).into_owned())
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        let held = self.pages.iter_mut().filter_map(|page| page.get_mut()).filter(|page| !page.is_empty()).count();
        self.allowance.give_back(held * PAGE + self.pages.len() * size_of::<Page>());
    }
}

/// A part of such pages, for the readers of unwinding tables and debug info.
#[derive(Debug, Clone)]
pub(crate) struct Bytes {
    pages: Arc<Pages>,
    at: u64,
    end: u64,
}

impl Bytes {
    /// A part of them, as far as they go.
    pub(crate) fn new(pages: &Arc<Pages>, at: u64, length: u64) -> Self {
        let end = at.saturating_add(length).min(pages.length);
        Self { pages: Arc::clone(pages), at: at.min(end), end }
    }

    /// What stands there, at most so many bytes: damaged info can make a name of a whole file.
    fn all(&self) -> gimli::Result<Vec<u8>> {
        const MOST: u64 = 1 << 20;
        if self.end - self.at > MOST {
            return Err(Error::Io);
        }
        let mut bytes = vec![0; (self.end - self.at) as usize];
        self.pages.read(self.at, &mut bytes).ok_or(Error::Io)?;
        Ok(bytes)
    }
}

impl gimli::Reader for Bytes {
    type Endian = LittleEndian;
    type Offset = usize;

    fn endian(&self) -> LittleEndian {
        LittleEndian
    }

    fn len(&self) -> usize {
        (self.end - self.at) as usize
    }

    fn empty(&mut self) {
        self.end = self.at;
    }

    fn truncate(&mut self, length: usize) -> gimli::Result<()> {
        if length > self.len() {
            return Err(Error::UnexpectedEof(self.offset_id()));
        }
        self.end = self.at + length as u64;
        Ok(())
    }

    fn offset_from(&self, base: &Self) -> usize {
        self.at.saturating_sub(base.at) as usize
    }

    fn offset_id(&self) -> ReaderOffsetId {
        ReaderOffsetId(self.at)
    }

    fn lookup_offset_id(&self, id: ReaderOffsetId) -> Option<usize> {
        (self.at..=self.end).contains(&id.0).then(|| (id.0 - self.at) as usize)
    }

    fn find(&self, byte: u8) -> gimli::Result<usize> {
        let mut at = self.at;
        while at < self.end {
            self.pages.limits.step()?;
            let piece = self.pages.piece(at).ok_or(Error::Io)?;
            if let Some(found) = piece.iter().position(|&here| here == byte) {
                let found = at + found as u64;
                return if found < self.end { Ok((found - self.at) as usize) } else { break };
            }
            at += piece.len() as u64;
        }
        Err(Error::UnexpectedEof(self.offset_id()))
    }

    fn skip(&mut self, length: usize) -> gimli::Result<()> {
        if length > self.len() {
            return Err(Error::UnexpectedEof(self.offset_id()));
        }
        self.at += length as u64;
        Ok(())
    }

    fn split(&mut self, length: usize) -> gimli::Result<Self> {
        let mut first = self.clone();
        first.truncate(length)?;
        self.skip(length)?;
        Ok(first)
    }

    fn to_slice(&self) -> gimli::Result<Cow<'_, [u8]>> {
        self.all().map(Cow::Owned)
    }

    fn to_string(&self) -> gimli::Result<Cow<'_, str>> {
        String::from_utf8(self.all()?).map(Cow::Owned).map_err(|_| Error::BadUtf8)
    }

    fn to_string_lossy(&self) -> gimli::Result<Cow<'_, str>> {
        self.all().map(|bytes| Cow::Owned(String::from_utf8_lossy(&bytes).into_owned()))
    }

    fn read_slice(&mut self, into: &mut [u8]) -> gimli::Result<()> {
        if into.len() > self.len() {
            return Err(Error::UnexpectedEof(self.offset_id()));
        }
        self.pages.limits.step()?;
        self.pages.read(self.at, into).ok_or(Error::Io)?;
        self.at += into.len() as u64;
        Ok(())
    }

    // Most of what is read is single bytes.
    fn read_u8(&mut self) -> gimli::Result<u8> {
        if self.at >= self.end {
            return Err(Error::UnexpectedEof(self.offset_id()));
        }
        self.pages.limits.step()?;
        let byte = *self.pages.piece(self.at).and_then(|piece| piece.first()).ok_or(Error::Io)?;
        self.at += 1;
        Ok(byte)
    }
}

#[cfg(test)]
mod tests;
