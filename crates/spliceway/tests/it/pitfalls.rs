//! Faults that relays have had, each as the scenario that showed it.

mod bounds; // the bytes that a relay holds for a slow sink, and their exact fate
mod cancelled; // dropped at any point, a relay leaks no byte to another relay and no descriptor
mod counted; // the counts say what was spliced, while the relay runs and at its end
mod descriptors; // the descriptors that a relay gets: a socket that blocks, a socket of records
mod ended; // ends and resets, alone and with data before them
mod fair; // one bulk transfer does not keep a thousand others waiting
mod freed; // whatever ends a relay, its descriptors and its pipe are free at once
mod limited; // a limit takes exactly this many bytes
mod limits; // no pipe, a small pipe, no descriptor: copied with the reason, and spliced again later
mod short; // short writes, small messages, bursts, chains: all arrives, at once and mostly spliced
mod slots; // slots of a pipe fill before its bytes do, and exactly sixteen are no exception
mod stuck; // a sink that takes nothing costs nothing, and loses nothing
mod urgent; // one urgent byte stops no stream and hides no other byte
