//! Faults that other relays have had. Each test is the scenario that showed the fault.

// The bytes that a relay holds for a slow sink, and where each of them goes.
mod bounds;
// A relay that is dropped at any point leaks no byte to another relay, and no descriptor.
mod cancelled;
// The counts show what was spliced, while the relay runs and at its end.
mod counted;
// Unusual descriptors: a socket that blocks, and a socket of records.
mod descriptors;
// Ends and resets, alone and after data.
mod ended;
// One bulk transfer does not delay a thousand other relays.
mod fair;
// However a relay ends, its descriptors and its pipe are free immediately.
mod freed;
// A relay reads exactly as many bytes as its limit allows.
mod limited;
// Without a pipe, with a small pipe or without descriptors: the relay copies, gives the reason, and
// splices again later.
mod limits;
// Short writes, small messages, bursts, chains: all bytes arrive immediately, and most are spliced.
mod short;
// Options that the caller has set on a socket.
mod socket_options;
// The slots of a pipe fill before its bytes do, even with exactly 16 fragments.
mod slots;
// A blocked sink costs no CPU time, and no bytes are lost.
mod stuck;
// An urgent byte stops no stream and hides no other byte.
mod urgent;
