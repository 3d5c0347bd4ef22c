//! Faults this field has had, each as the scenario that showed it.

mod bounds; // what a relay holds for a slow sink, and to the byte what became of it
mod cancelled; // dropped at any point, no byte reaches another relay and no descriptor is left behind
mod counted; // the counts tell what was spliced, while it runs and at the end
mod descriptors; // what a relay is given: a socket that blocks, a socket of records
mod ended; // ends and resets, alone and with data before them
mod fair; // one bulk transfer does not keep a thousand others waiting
mod freed; // whatever ends a relay, its descriptors and its pipe are free at once
mod limited; // a limit takes so many bytes and not one more
mod limits; // no pipe, a small pipe, no descriptor: copied, with the reason, and spliced again later
mod short; // short writes, small messages, bursts, chains of relays: all of it arrives, at once and mostly spliced
mod slots; // slots of a pipe fill before bytes do, and just sixteen are no exception
mod stuck; // a sink that takes nothing costs nothing, and loses nothing
mod urgent; // one urgent byte stops no stream and hides no other byte
