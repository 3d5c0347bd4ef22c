//! What the operations of a [`Splicer`](crate::Splicer) report.

/// The outcome of a [`Read`](crate::Read), which describes the state of the source.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReadOutcome {
    /// The source may have more bytes.
    Open,
    /// The source returned fewer bytes than the read requested, so it is drained, and an edge will
    /// announce the next byte. A caller that clears readiness must keep the poller's report of a
    /// closed or failed socket. It must also [check the source for an urgent
    /// mark](crate::UrgentMarks), because a read stops short there as well.
    Short,
    /// A probe found no byte, no end and no urgent mark at the source. An edge will announce the
    /// next change.
    Drained,
    /// The source had no bytes to read.
    WouldBlock,
    /// A source with TLS in the kernel had a record without data. `scratch` begins with its
    /// content.
    Record {
        /// The type of the record.
        kind: u8,
        /// The length of its content. Its type keeps the outcome in a register.
        length: u32,
    },
}

/// The outcome of a write, which describes the state of the sink.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WriteOutcome {
    /// The sink did not report that it is full. In most cases, it accepted some bytes.
    Open,
    /// The sink is full.
    WouldBlock,
}
