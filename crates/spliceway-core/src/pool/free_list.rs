//! A free list holds one stack of idle pipes per size class. It tracks how many of them have not
//! been needed lately.

use super::SizeClass;

pub(super) struct FreeList<T> {
    stacks: [Stack<T>; SizeClass::ALL.len()],
    /// The number of pipes lent from this list so far.
    pub(super) reused: u64,
}

/// The stack is last in, first out, so pipes that are not needed sink to the bottom and stay there.
struct Stack<T> {
    pipes: Vec<T>,
    /// The lowest height since the last [`FreeList::take_unneeded`]. This many pipes, counted from
    /// the bottom, have not been touched since then.
    low_water: usize,
}

impl<T> Default for FreeList<T> {
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

impl<T> FreeList<T> {
    pub(super) fn put(&mut self, class: SizeClass, pipe: T) {
        self.stacks[class as usize].pipes.push(pipe);
    }

    /// Takes over the pipes and the count of a list whose thread ends.
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

    /// Empties the list.
    pub(super) fn take_all(&mut self) -> Vec<T> {
        self.take_bottom(|stack| stack.pipes.len())
    }

    /// Takes the pipes that have not been touched since the last call.
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
