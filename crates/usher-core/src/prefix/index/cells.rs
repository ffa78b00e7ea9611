//! Cells of a table that are in use.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use super::set::{FORMS, Form};

/// Hands out the cells of a table. Those that were given back are chained, by form, through
/// their own first cell.
#[derive(Debug, Default)]
pub(super) struct Cells {
    /// Cells that were handed out once.
    begun: usize,
    /// Cells in use.
    live: usize,
    /// Maps in use.
    maps: usize,
    /// By form, the cell that was given back last.
    free: [Option<usize>; FORMS],
}

/// Content of the last cell of a chain.
const END: u64 = u64::MAX;

impl Cells {
    /// Cells in use.
    pub(super) fn live(&self) -> usize {
        self.live
    }

    /// Maps in use.
    pub(super) fn maps(&self) -> usize {
        self.maps
    }

    /// The first of the cells for a set; `None` when there are no more.
    pub(super) fn take(&mut self, form: Form, width: usize, cells: &[AtomicU64]) -> Option<usize> {
        let needed = form.cells(width);
        let free = &mut self.free[form.number()];
        let start = match *free {
            Some(start) => {
                let next = cells.get(start).map_or(END, |cell| cell.load(Relaxed));
                *free = (next != END).then_some(next as usize);
                start
            }
            None => {
                let start = self.begun;
                self.begun = Some(start + needed).filter(|end| *end <= cells.len())?;
                start
            }
        };
        self.live += needed;
        self.maps += usize::from(form == Form::Map);
        Some(start)
    }

    /// Takes back the cells of a set.
    pub(super) fn give(&mut self, form: Form, start: usize, width: usize, cells: &[AtomicU64]) {
        let free = &mut self.free[form.number()];
        if let Some(cell) = cells.get(start) {
            cell.store(free.map_or(END, |next| next as u64), Relaxed);
            *free = Some(start);
            self.live -= form.cells(width);
            self.maps -= usize::from(form == Form::Map);
        }
    }
}
