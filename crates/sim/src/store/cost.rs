//! What an operation costs as members grow: hops, messages, links. Computed from the meshes and layouts of production.

use outlast_proto::id::PeerId;
use outlast_proto::store::layout::Layout;
use outlast_proto::store::mesh::Mesh;
use outlast_proto::wire::store::{ClientId, MemberId, StoreMember, View};
use std::collections::BTreeSet;
use std::fmt::Write as _;

/// The means over all pairs of a member that asks and a bucket that is asked for (a sample of them in large stores).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Cost {
    /// How many members there are.
    pub members: usize,
    /// Links of one member.
    pub links: f64,
    /// Hops from one member to another, over the mesh.
    pub hops: f64,
    /// The most of them.
    pub hops_max: u32,
    /// Messages between two members for a read that is passed on: there and back.
    pub read_messages: f64,
    /// The same for a write: to the owner, to the replica, from there to whoever asked and to the owner.
    pub write_messages: f64,
    /// How many of these are one after the other before the answer is there.
    pub write_path: f64,
    /// Hops until the last member has heard a broadcast.
    pub broadcast_hops: u32,
}

/// Measures a store of that many members, one per host.
pub fn measure(members: usize) -> Cost {
    let member = |number: u64| StoreMember {
        // Random, as in life.
        id: MemberId(number.wrapping_mul(0x9e37_79b9_7f4a_7c15)),
        peer: PeerId::from_bytes([0; 16]),
        client: ClientId(number),
        rank: number as u32,
        address: ([127, 0, 0, 1], 1).into(),
        closed_port: 0,
        name: String::new(),
        host: number,
        ends_store: false,
    };
    let mut list: Vec<_> = (1..=members as u64).map(member).collect();
    list.sort_by_key(|member| member.id);
    let view = View { epoch: 1, founder: 7, members: list };
    let (mesh, layout) = (Mesh::new(&view), Layout::new(view.clone()));
    let nothing_broken = BTreeSet::new();
    let ids: Vec<_> = view.members.iter().map(|member| member.id).collect();
    let links = ids.iter().map(|id| mesh.neighbours(*id).count()).sum::<usize>() as f64 / members as f64;
    let asking: Vec<_> = ids.iter().copied().step_by((members / 50).max(1)).collect();
    let (mut hops, mut pairs, mut hops_max) = (0, 0, 0);
    let (mut read, mut write, mut path, mut asked) = (0, 0, 0, 0);
    for from in &asking {
        let routes = mesh.routes(*from, &nothing_broken);
        for to in ids.iter().filter(|to| *to != from) {
            let far = routes.hops(*to).unwrap_or(0);
            (hops, pairs, hops_max) = (hops + u64::from(far), pairs + 1, hops_max.max(far));
        }
        for bucket in (0..4_096).step_by(97) {
            let Some(holders) = layout.holders(bucket) else { continue };
            let there = routes.hops(holders.owner).unwrap_or(0);
            let behind = mesh.routes(holders.owner, &nothing_broken);
            let copy = holders.replica.and_then(|replica| behind.hops(replica)).unwrap_or(0);
            read += u64::from(2 * there);
            let back = holders.replica.map_or(there, |replica| routes.hops(replica).unwrap_or(0));
            // The owner's own program hears it from the owner.
            let (back, told) = if holders.owner == *from { (0, copy) } else { (back, copy) };
            write += u64::from(there + copy + back + told);
            path += u64::from(there + copy + if holders.owner == *from { told } else { back });
            asked += 1;
        }
    }
    let mean = |sum: u64, count: u64| sum as f64 / count.max(1) as f64;
    let tree = mesh.routes(asking[0], &nothing_broken);
    Cost {
        members,
        links,
        hops: mean(hops, pairs),
        hops_max,
        read_messages: mean(read, asked),
        write_messages: mean(write, asked),
        write_path: mean(path, asked),
        broadcast_hops: ids.iter().filter_map(|id| tree.hops(*id)).max().unwrap_or(0),
    }
}

/// The costs of stores of several sizes, as a table of a page.
pub fn table(sizes: &[usize]) -> String {
    let mut text = "| members | links of each | hops, mean / most | a read | a write | of these one after the other | broadcast, hops |\n\
                    |--:|--:|--:|--:|--:|--:|--:|"
        .to_owned();
    for cost in sizes.iter().map(|members| measure(*members)) {
        let Cost { members, links, hops, hops_max, read_messages: read, write_messages: write, .. } = cost;
        let (path, broadcast) = (cost.write_path, cost.broadcast_hops);
        let _ = write!(
            text,
            "\n| {members} | {links:.1} | {hops:.2} / {hops_max} | {read:.2} | {write:.2} | {path:.2} | {broadcast} |"
        );
    }
    text
}
