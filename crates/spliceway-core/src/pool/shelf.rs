//! A stack of idle pipes per size class, which knows how many of them nobody needed lately.

use super::{Lent, SizeClass};

#[derive(Default)]
pub(super) struct Shelf {
    stacks: [Stack; SizeClass::ALL.len()],
    /// Pipes lent from here so far.
    pub(super) reused: u64,
}

/// Last in, first out, so what is not needed sinks to the bottom and stays there.
#[derive(Default)]
struct Stack {
    pipes: Vec<Lent>,
    /// The lowest height since the last [`Shelf::take_unneeded`]: so many, from the bottom, were not touched since.
    low_water: usize,
}

impl Shelf {
    pub(super) fn put(&mut self, class: SizeClass, pipe: Lent) {
        self.stacks[class as usize].pipes.push(pipe);
    }

    /// Takes over the pipes of a shelf whose thread ends, and its count.
    pub(super) fn absorb(&mut self, ended: Self) {
        self.reused += ended.reused;
        for (stack, from) in self.stacks.iter_mut().zip(ended.stacks) {
            stack.pipes.extend(from.pipes);
        }
    }

    pub(super) fn take(&mut self, class: SizeClass) -> Option<Lent> {
        let stack = &mut self.stacks[class as usize];
        let pipe = stack.pipes.pop()?;
        stack.low_water = stack.low_water.min(stack.pipes.len());
        self.reused += 1;
        Some(pipe)
    }

    pub(super) fn idle_of(&self, class: SizeClass) -> usize {
        self.stacks[class as usize].pipes.len()
    }

    pub(super) fn idle(&self) -> usize {
        self.stacks.iter().map(|stack| stack.pipes.len()).sum()
    }

    /// Empties the shelf.
    pub(super) fn take_all(&mut self) -> Vec<(SizeClass, Lent)> {
        self.take_bottom(|stack| stack.pipes.len())
    }

    /// Takes the pipes that were not touched since this was last called.
    pub(super) fn take_unneeded(&mut self) -> Vec<(SizeClass, Lent)> {
        self.take_bottom(|stack| stack.low_water)
    }

    fn take_bottom(&mut self, count: impl Fn(&Stack) -> usize) -> Vec<(SizeClass, Lent)> {
        let mut taken = Vec::new();
        for (class, stack) in SizeClass::ALL.into_iter().zip(&mut self.stacks) {
            let count = count(stack);
            taken.extend(stack.pipes.drain(..count).map(|pipe| (class, pipe)));
            stack.low_water = stack.pipes.len();
        }
        taken
    }
}
