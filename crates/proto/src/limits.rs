//! Every bound in one place.
//!
//! Whatever arrives from outside has a length or a count; each of them is checked against a number on this
//! page before anything is allocated for it. A limit that is hit is an error that names the limit.

/// Longest run id, in bytes. It travels in the TLS server name, encoded, and must fit there.
pub const RUN_ID_BYTES_MAX: usize = 64;
/// Longest name that a member gives itself.
pub const NAME_BYTES_MAX: usize = 64;
/// Most metadata that a member may attach to itself; it rides in datagrams, so it is small.
pub const META_BYTES_MAX: usize = 256;

/// Largest sealed datagram on the wire. 1,200 bytes pass every path that carries IPv6 (RFC 8200 asks for
/// 1,280), so health never depends on fragments.
pub const DATAGRAM_BYTES_MAX: usize = 1_200;
/// Header (version, kind, sender, boot, counter), sealed prefix (sending time, length) and tag of a sealed
/// datagram.
pub const DATAGRAM_OVERHEAD_BYTES: usize = (2 + 16 + 8 + 8) + (6 + 2) + 16;
/// What is left of a datagram for an encoded membership packet.
pub const PACKET_BYTES_MAX: usize = DATAGRAM_BYTES_MAX - DATAGRAM_OVERHEAD_BYTES;
/// Most records in one membership packet.
pub const PACKET_RECORDS_MAX: usize = 64;
/// Most accusers that a record names. More would not change any decision (rule 21 asks for three at most).
pub const ACCUSERS_MAX: usize = 8;

/// Largest message on a stream, and so the most that a framed reader ever buffers for one. Every message that keeps the
/// other limits on this page fits (rule 40): the largest is a resume, with a record of [`ROSTER_BYTES_MAX`] and what
/// [`TAGS_MAX`], [`SCOPES_MEMBERS_MAX`], [`OPEN_TENSORS_MAX`] and the `BRIEF` limits leave of its tags.
pub const FRAME_BYTES_MAX: usize = 16 << 20;
/// Largest message between a peer and the coordinator: what a frame carries.
pub const CONTROL_BYTES_MAX: usize = FRAME_BYTES_MAX;
/// Largest roster, encoded: 16,384 members with the longest names fit, 9,800 with the most metadata as well. Beyond it
/// joins are refused with an error that says so.
pub const ROSTER_BYTES_MAX: usize = 4 << 20;
/// Longest status, as text. Of a run that needs more, fewer peers and groups are described.
pub const STATUS_BYTES_MAX: usize = 1 << 20;
/// Largest hello. It is read before the other side has proved anything, so it is small.
pub const HELLO_BYTES_MAX: usize = 1_024;
/// Longest name of a software or of a plane in a hello.
pub const HELLO_NAME_BYTES_MAX: usize = 64;

/// Members that one group holds. Beyond it joins are refused with an error that says so.
pub const MEMBERS_MAX: usize = 16_384;
/// Failed members that are remembered; the oldest is forgotten first.
pub const FAILED_MAX: usize = 4_096;

/// Runs that one coordinator serves at once: each has a member of its health group, with a thread and a port. When
/// there are more, one that nobody is in is forgotten, or the newest is refused.
pub const RUNS_MAX: usize = 128;
/// Runs that one peer is in at once, at one coordinator. A process that trains is in one.
pub const RUNS_PER_PEER_MAX: usize = 4;
/// Control connections of one peer at once, at one coordinator: its session's, one that has not ended yet, and
/// questions about the status.
pub const CONTROL_CONNECTIONS_PER_PEER_MAX: usize = 8;
/// Registrations of one peer in quick succession, and the milliseconds until it may register once more. A program
/// that connects and leaves as fast as it can stays below it; one that does nothing else costs the clerk little.
pub const REGISTRATIONS_BURST: u32 = 1_024;
/// See [`REGISTRATIONS_BURST`].
pub const REGISTRATION_MS: u64 = 10;
/// Questions about the status that one peer asks in quick succession, and the milliseconds until it may ask once
/// more; and the same for all peers together.
pub const QUESTIONS_BURST: u32 = 20;
/// See [`QUESTIONS_BURST`].
pub const QUESTION_MILLIS: u64 = 100;
/// See [`QUESTIONS_BURST`].
pub const QUESTIONS_BURST_ALL: u32 = 200;
/// See [`QUESTIONS_BURST`].
pub const QUESTION_MILLIS_ALL: u64 = 10;
/// Kicked or refused peers, and refused sources, that a status tells of.
pub const STATUS_REFUSALS_MAX: usize = 16;

/// Members that a scope lists. Larger parts of a group are better made a group of their own.
pub const SCOPE_MEMBERS_MAX: usize = 1_024;
/// Axes of one tensor with more than one element each; numpy and torch allow no more.
pub const AXES_MAX: usize = 64;
/// Tensors in one transaction.
pub const TENSORS_MAX: usize = 4_096;
/// Different (scope, tag) that one member takes part in, in one epoch. Their numbers must be remembered until it ends,
/// so tags are names to be used again, not serial numbers.
pub const TAGS_MAX: usize = 1_024;
/// Members that all scopes which one peer uses list together, so that its resume fits a message.
pub const SCOPES_MEMBERS_MAX: usize = 16_384;
/// Tensors that one peer's unfinished calls describe together, so that its resume fits a message. One that is not flat
/// counts as one more for every eight of its axes.
pub const OPEN_TENSORS_MAX: usize = 65_536;
/// Runs of like verdicts that are kept for one (scope, tag): by a peer for calls that its program has not made yet, by
/// the coordinator for members that are away.
pub const UNCLAIMED_MAX: usize = 256;
/// Longest explanation in words.
pub const TEXT_BYTES_MAX: usize = 2_048;
/// Peers that a remembered verdict names, for a coordinator that has forgotten it.
pub const BRIEF_NAMED_MAX: usize = 8;
/// Longest explanation in a remembered verdict.
pub const BRIEF_TEXT_BYTES_MAX: usize = 96;
/// Verdicts per tag that a peer remembers for a coordinator that has forgotten them, besides the last commit.
pub const LEARNED_MAX: usize = 8;
/// Incidents that a run's annals hold, and that one message tells.
pub const INCIDENTS_MAX: usize = 100;
/// Longest incident, in characters.
pub const INCIDENT_CHARS_MAX: usize = 160;
/// Peers that an error or a status names; the rest is counted.
pub const NAMED_MAX: usize = 32;
/// Peers that a status describes one by one.
pub const STATUS_PEERS_MAX: usize = 1_024;
/// Kinds of ballots that a record or a resume tells of.
pub const BALLOT_KINDS_MAX: usize = 16;
/// Most that a voter may ask for in a ballot. The coordinator keeps it for every member, so it is small; what is larger
/// travels between the members.
pub const WISH_BYTES_MAX: usize = 64 << 10;
/// Most that a ballot's outcome says to all of its voters: the order of a ring of [`MEMBERS_MAX`], and more. Everybody
/// remembers the last one of each kind for a coordinator that has forgotten it.
pub const OUTCOME_BYTES_MAX: usize = 128 << 10;
/// Links of a group whose speed is remembered: all of some hundred members, or a sample of as many as are ordered.
pub const LINKS_MAX: usize = 1 << 15;
/// Links whose speed one member brings along with its vote for a better ring.
pub const LINKS_BROUGHT_MAX: usize = 1_024;
/// Links whose speed the outcome of such a vote tells everybody.
pub const LINKS_TOLD_MAX: usize = 4_096;
/// Longest name of a site.
pub const SITE_BYTES_MAX: usize = 64;
/// Broken links that an epoch's record tells. A group with more of them has hardly a ring left.
pub const BROKEN_LINKS_MAX: usize = 4_096;
/// Histories of before that an epoch's record tells. A member that has missed more of them joins anew.
pub const ANCESTORS_MAX: usize = 8;
/// Coordinators of one cluster, and addresses that are dialled to find the one that reigns.
pub const COORDINATORS_MAX: usize = 32;
/// Peers whose streams to a coordinator that stands by are counted, and that it appeals for at once.
pub const SEEKERS_MAX: usize = 4_096;
/// Groups whose last revision a coordinator remembers, those without members among them. A run has a few.
pub const REVISIONS_MAX: usize = 4_096;
/// Different calls that are told apart in one attempt before it is judged who deviates.
pub const CALLS_MAX: usize = 16;
/// Messages of one peer that are held back while the coordinator is being rebuilt: each call may vote, refuse
/// and acknowledge.
pub const HELD_MAX: usize = 4 * TAGS_MAX;
/// Largest epoch, term, seq or vote that a peer may claim to remember. Nobody counts that far in a thousand years
/// of a million per second, and whatever is counted on from it does not overflow.
pub const COUNT_MAX: u64 = 1 << 60;

/// Bytes of the largest TCP segment on loopback, rounded down to whole cache lines. Frames that fill whole
/// segments leave no crumbs: a segment of a hundred bytes costs as much as a full one.
pub const SEGMENT_BYTES: usize = 65_472;
/// Largest block of a ring, and so the largest payload of a data frame: with its header four segments. Two of
/// them under way stay in a core's second-level cache from the wire through the sum to the next wire.
pub const BLOCK_BYTES_MAX: usize = 4 * SEGMENT_BYTES - FRAME_HEADER_BYTES;
/// An all-reduce of up to this many bytes sends whole contributions around the ring ([`whole`](crate::collective::whole))..
pub const WHOLE_BYTES_MAX: u64 = 16 << 10;
/// ..unless a member would send more than this for it. All members of a run must have the same two numbers.
pub const WHOLE_SENT_BYTES_MAX: u64 = 256 << 10;
/// Bytes of a data frame's header.
pub const FRAME_HEADER_BYTES: usize = 64;
/// Bytes of one collective that may be sent over a link before the receiver has made its own call (rule 14).
pub const EAGER_BYTES_MAX: usize = 64 << 10;
/// Eager bytes of all collectives together on one link (rule 14).
pub const EAGER_LINK_BYTES_MAX: usize = 4 << 20;
/// Eager frames of all collectives together on one link; empty frames cost memory too.
pub const EAGER_LINK_FRAMES_MAX: usize = 1_024;
/// Calls that a receiver may announce on one link before the sender has made its own.
pub const EARLY_CREDITS_MAX: usize = 4_096;
/// Bytes that one collective reduces. More than any machine holds; it keeps the arithmetic of plans in range.
pub const OPERATION_BYTES_MAX: u64 = 1 << 44;

/// Tensors of one shared state.
pub const STATE_TENSORS_MAX: usize = 1 << 18;
/// Longest key of a tensor in a shared state.
pub const STATE_KEY_BYTES_MAX: usize = 512;
/// Leaves of one shared state: 4 TiB of 1 MiB each, or that many tiny tensors.
pub const STATE_LEAVES_MAX: usize = 1 << 22;
/// Keys, types and shapes of one shared state, encoded.
pub const STATE_OUTLINE_BYTES_MAX: usize = 64 << 20;
/// Bytes that travel along with a shared state.
pub const STATE_EXTRA_BYTES_MAX: usize = 16 << 20;

/// Nodes in all lists of one rendezvous together. Beyond it joins are refused with an error that says so.
pub const RENDEZVOUS_NODES_MAX: usize = 4_096;
/// Longest name of a host in a rendezvous: what DNS allows.
pub const HOST_BYTES_MAX: usize = 253;
/// Longest address that a participant leaves for the others: a host, a port and brackets.
pub const NODE_ADDRESS_BYTES_MAX: usize = 264;
/// Largest value of a register. The state of a rendezvous with as many nodes as there may be, with the longest names,
/// fits.
pub const REGISTER_BYTES_MAX: usize = 4 << 20;
/// Longest name of a register, and of what holds a lease in one.
pub const REGISTER_NAME_BYTES_MAX: usize = 64;
/// See [`REGISTER_NAME_BYTES_MAX`].
pub const HOLDER_BYTES_MAX: usize = 288;
/// Longest note that a holder leaves beside its lease: what a node of a rendezvous wants, with the longest names. As many
/// as there may be leases fit into a frame, beside the largest value.
pub const NOTE_BYTES_MAX: usize = 576;
/// Leases in one register: every node of a rendezvous, and as many that have just left.
pub const LEASES_MAX: usize = 2 * RENDEZVOUS_NODES_MAX;
/// Registers of one run.
pub const REGISTERS_PER_RUN_MAX: usize = 8;
/// Values of all registers of one coordinator together.
pub const REGISTERS_BYTES_MAX: usize = 64 << 20;
/// Longest lease. A node that is gone is not waited for any longer.
pub const LEASE_MS_MAX: u32 = 3_600_000;

/// Agents that watch processes of one run: one for each host.
pub const WITNESSES_MAX: usize = 4_096;
/// Processes that one agent watches, those that have ended of late included.
pub const WITNESSED_MAX: usize = 1_024;
/// Processes that all agents of a run watch.
pub const WITNESSED_IN_ALL_MAX: usize = 65_536;

/// Longest key of the store. Programs use paths of a few dozen bytes; ten kilobytes must work.
pub const STORE_KEY_BYTES_MAX: usize = 64 << 10;
/// Largest value of the store, and largest element of a queue. It is for bootstrap and control data; what is larger
/// belongs into shared state.
pub const STORE_VALUE_BYTES_MAX: usize = 1 << 30;
/// What one message between two members of the store may hold: the largest value twice (a compare-and-set), with its
/// key. It travels in pieces of [`STORE_PIECE_BYTES`].
pub const STORE_MESSAGE_BYTES_MAX: usize = 2 * STORE_VALUE_BYTES_MAX + (1 << 20);
/// What a key may hold, all elements of a queue together, with what is counted beside their bytes: a record is handed over
/// in one message, which must have room for the key and for the calls that were done to it, too.
pub const STORE_RECORD_BYTES_MAX: u64 = STORE_MESSAGE_BYTES_MAX as u64 - (1 << 19);
/// A message that is longer than this travels in pieces of this length, so that small ones get between them.
pub const STORE_PIECE_BYTES: usize = 64 << 10;
/// Largest frame between two members of the store: a piece and what is said about it.
pub const STORE_FRAME_BYTES_MAX: usize = STORE_PIECE_BYTES + 1_024;
/// Members of one store.
pub const STORE_MEMBERS_MAX: usize = 4_096;
/// Parts that keys are dealt into. A part has one owner and one replica; a view says who.
pub const STORE_BUCKETS: usize = 4_096;
/// Bytes of records that are handed over in one message. One record that is larger travels alone.
pub const STORE_HANDOVER_BYTES: usize = 1 << 20;
/// Requests that an owner keeps until it may answer: the next view is about to begin, or its lease was not renewed yet.
/// Beyond it they are dropped, and their clients ask again.
pub const STORE_HELD_MAX: usize = 16_384;
/// Changes that a replica does ahead of one that has not come, or that is frozen. What is behind them is told again later.
pub const STORE_AHEAD_MAX: usize = 1 << 20;
/// Requests that wait at one owner for keys.
pub const STORE_WAITERS_MAX: usize = 1 << 20;
/// Finished calls of clients outside the view that one record remembers. Those of members are all remembered.
pub const STORE_STRANGERS_MAX: usize = 256;
/// Bytes that one member keeps, as owner and as replica, unless it is told otherwise.
pub const STORE_BYTES_MAX: u64 = 8 << 30;
/// Calls that one client has under way.
pub const STORE_CALLS_MAX: usize = 1 << 20;
/// Broadcasts of one origin that are remembered, to tell a second copy. One that comes when so many later ones are here is
/// taken for such a copy.
pub const STORE_CASTS_MAX: usize = 1_024;
/// Largest question about a call, or account of one, in a datagram: one byte in front of it says that it is the store's.
pub const STORE_DATAGRAM_BYTES_MAX: usize = PACKET_BYTES_MAX - 1;
/// Calls of one member about which others are asked at the same time; further ones end without.
pub const STORE_INQUIRIES_MAX: usize = 64;
/// Links whose state an account of a member tells.
pub const STORE_ACCOUNT_LINKS_MAX: usize = 16;
/// Longest key that a question about a call repeats; of a longer one the owner tells nothing.
pub const STORE_ASKED_KEY_BYTES_MAX: usize = 512;
/// Hops after which a message that is passed on is dropped: whoever sent it sends it again.
pub const STORE_HOPS_MAX: u8 = 64;
