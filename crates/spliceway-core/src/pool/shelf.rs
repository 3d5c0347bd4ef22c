//! A stack of idle pipes per size class, which knows how many of them nobody needed lately.

use super::SizeClass;

pub(super) struct Shelf<T> {
    stacks: [Stack<T>; SizeClass::ALL.len()],
    /// Pipes lent from here so far.
    pub(super) reused: u64,
}

/// Last in, first out, so what is not needed sinks to the bottom and stays there.
struct Stack<T> {
    pipes: Vec<T>,
    /// The lowest height since the last [`Shelf::take_unneeded`]: so many, from the bottom, were not touched since.
    low_water: usize,
}

impl<T> Default for Shelf<T> {
    fn default() -> Self {
        let empty = |_| Stack {
            pipes: Vec::new(),
            low_water: 0,
        };
        Self {
            stacks: SizeClass::ALL.map(empty),
            reused: 0,
        }
    }
}

impl<T> Shelf<T> {
    pub(super) fn put(&mut self, class: SizeClass, pipe: T) {
        self.stacks[class as usize].pipes.push(pipe);
    }

    /// Takes over the pipes of a shelf whose thread ends, and its count.
    pub(super) fn absorb(&mut self, ended: Self) {
        self.reused += ended.reused;
        for (stack, from) in self.stacks.iter_mut().zip(ended.stacks) {
            stack.pipes.extend(from.pipes);
        }
    }

    pub(super) fn take(&mut self, class: SizeClass) -> Option<T> {
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
    pub(super) fn take_all(&mut self) -> Vec<T> {
        self.take_bottom(|stack| stack.pipes.len())
    }

    /// Takes the pipes that were not touched since this was last called.
    pub(super) fn take_unneeded(&mut self) -> Vec<T> {
        self.take_bottom(|stack| stack.low_water)
    }

    fn take_bottom(&mut self, count: impl Fn(&Stack<T>) -> usize) -> Vec<T> {
        let mut taken = Vec::new();
        for stack in &mut self.stacks {
            let count = count(stack);
            taken.extend(stack.pipes.drain(..count));
            stack.low_water = stack.pipes.len();
        }
        taken
    }
}
