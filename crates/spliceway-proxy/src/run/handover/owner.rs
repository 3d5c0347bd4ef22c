//! Which process owns a session during its hand-over. Only the owner passes bytes.
//!
//! ```text
//!   old process                               new process
//!
//!   Owns ── offers ──▶ Offered ·············▶ Nothing ── receives ──▶ Holds
//!    ▲                  │  │                                          │   │
//!    ├── "refused" ◀····│··│············································   │ answers "taken":
//!    │                  │  └── "taken" ──▶ Gave ◀······················   │ the commit point
//!    └── gone without   │                                             ▼   ▼
//!        an answer ─────┘                                       Nothing   Owns
//! ```
//!
//! The commit point is the moment at which "taken" is in the socket of the old process. The new
//! process passes no byte before it. The old process passes no byte until it has read an answer, or
//! knows that none will come: it has reaped the new process, and its socket is empty.

/// The answer of the new process to an offer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Answer {
    Taken,
    Refused,
}

/// The session as the old process sees it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(super) enum Giver {
    #[default]
    Owns,
    /// The whole offer is in the socket of the new process.
    Offered,
    Gave,
}

/// The session as the new process sees it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(super) enum Taker {
    #[default]
    Nothing,
    Holds,
    Owns,
}

impl Giver {
    pub(super) fn offered(&mut self) {
        debug_assert_eq!(*self, Self::Owns);
        *self = Self::Offered;
    }

    pub(super) fn answered(&mut self, answer: Answer) {
        debug_assert_eq!(*self, Self::Offered);
        *self = match answer {
            Answer::Taken => Self::Gave,
            Answer::Refused => Self::Owns,
        };
    }

    /// The new process has been reaped, and has left no answer.
    pub(super) fn gone(&mut self) {
        if *self == Self::Offered {
            *self = Self::Owns;
        }
    }

    pub(super) fn owns(self) -> bool {
        self == Self::Owns
    }
}

impl Taker {
    pub(super) fn received(&mut self) {
        debug_assert_eq!(*self, Self::Nothing);
        *self = Self::Holds;
    }

    /// The answer is in the socket of the old process, or that process is dead. It closes its
    /// socket only when it has reaped this process, so a closed socket proves its death.
    pub(super) fn answered(&mut self, answer: Answer) {
        debug_assert_eq!(*self, Self::Holds);
        *self = match answer {
            Answer::Taken => Self::Owns,
            Answer::Refused => Self::Nothing,
        };
    }

    pub(super) fn owns(self) -> bool {
        self == Self::Owns
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    /// Both processes, and what their sockets hold. `None` is a process that is dead.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    struct World {
        old: Option<Giver>,
        new: Option<Taker>,
        /// How much of the offer the socket of the new process holds.
        offer: Offer,
        answer: Option<Answer>,
        /// Whether the owner has died, and the session with it.
        lost: bool,
    }

    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    enum Offer {
        Nothing,
        Part,
        Whole,
        Read,
    }

    impl World {
        /// Returns every state that can follow, if no process dies.
        fn steps(self) -> Vec<Self> {
            let mut next = Vec::new();
            let mut step = |change: &dyn Fn(&mut Self)| {
                let mut world = self;
                change(&mut world);
                next.push(world);
            };
            if self.old == Some(Giver::Owns) {
                match self.offer {
                    Offer::Nothing => step(&|world| world.offer = Offer::Part),
                    Offer::Part => step(&|world| {
                        world.offer = Offer::Whole;
                        world.old.as_mut().unwrap().offered();
                    }),
                    Offer::Whole | Offer::Read => {}
                }
            }
            if self.new == Some(Taker::Nothing) && self.offer == Offer::Whole {
                step(&|world| {
                    world.offer = Offer::Read;
                    world.new.as_mut().unwrap().received();
                });
            }
            if self.new == Some(Taker::Holds) {
                for answer in [Answer::Taken, Answer::Refused] {
                    // A process that knows that the other one is dead does not refuse.
                    if answer == Answer::Refused && self.old.is_none() {
                        continue;
                    }
                    step(&|world| {
                        world.answer = world.old.map(|_| answer);
                        world.new.as_mut().unwrap().answered(answer);
                    });
                }
            }
            if self.old == Some(Giver::Offered) {
                match self.answer {
                    Some(answer) => step(&|world| {
                        world.answer = None;
                        world.old.as_mut().unwrap().answered(answer);
                    }),
                    None if self.new.is_none() => step(&|world| world.old.as_mut().unwrap().gone()),
                    None => {}
                }
            }
            next
        }

        /// Returns the states in which one more process is dead.
        fn deaths(self) -> Vec<Self> {
            let mut next = Vec::new();
            if let Some(giver) = self.old {
                // An offer that is not whole is never read, and a refusal makes the old process
                // the owner.
                let lost = self.lost || giver.owns() || self.answer == Some(Answer::Refused);
                next.push(Self {
                    old: None,
                    lost,
                    ..self
                });
            }
            if let Some(taker) = self.new {
                let owned = taker.owns();
                let lost = self.lost || owned;
                next.push(Self {
                    new: None,
                    lost,
                    ..self
                });
            }
            next
        }

        fn owners(self) -> usize {
            usize::from(self.old.is_some_and(Giver::owns)) + usize::from(self.new.is_some_and(Taker::owns))
        }
    }

    #[test]
    fn at_every_point_at_most_one_process_owns_a_session_and_none_is_lost() {
        let first = World {
            old: Some(Giver::Owns),
            new: Some(Taker::Nothing),
            offer: Offer::Nothing,
            answer: None,
            lost: false,
        };
        let (mut seen, mut open) = (HashSet::from([first]), vec![first]);
        let mut ends = HashSet::new();
        while let Some(world) = open.pop() {
            assert!(world.owners() <= 1, "{world:?}");
            let steps = world.steps();
            if steps.is_empty() {
                // Everything has been read, and no process waits.
                let both_dead = world.old.is_none() && world.new.is_none();
                assert!(world.owners() == 1 || world.lost || both_dead, "{world:?}");
                assert!(world.owners() == 0 || !world.lost, "{world:?}");
                ends.insert((world.old, world.new));
            }
            for next in steps.into_iter().chain(world.deaths()) {
                if seen.insert(next) {
                    open.push(next);
                }
            }
        }
        assert!(seen.len() > 20, "{}", seen.len());
        for end in [
            (Some(Giver::Gave), Some(Taker::Owns)),
            (Some(Giver::Owns), None),
            (None, Some(Taker::Owns)),
        ] {
            assert!(ends.contains(&end), "{end:?}: {ends:?}");
        }
    }
}
