//! What this machine has: accelerators, and processors near to each other.
//!
//! Drivers list their devices in the file system, so nothing has to be loaded for it. What the variables of the vendors
//! hide from a program is not counted, as the program would not find it.

use std::fs;
use std::path::Path;

/// How many accelerators a worker would find.
pub(super) fn accelerators() -> usize {
    let nvidia = entries("/proc/driver/nvidia/gpus");
    if nvidia > 0 {
        return visible("CUDA_VISIBLE_DEVICES").unwrap_or(nvidia).min(nvidia);
    }
    let amd = amd();
    let hidden = ["HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES"];
    hidden.iter().find_map(|name| visible(name)).unwrap_or(amd).min(amd)
}

fn entries(folder: &str) -> usize {
    fs::read_dir(folder).map_or(0, |entries| entries.filter_map(Result::ok).count())
}

/// The compute driver lists processors too; those have no number as an accelerator.
fn amd() -> usize {
    let Ok(nodes) = fs::read_dir("/sys/class/kfd/kfd/topology/nodes") else { return 0 };
    let is_one = |node: &fs::DirEntry| {
        fs::read_to_string(node.path().join("gpu_id"))
            .is_ok_and(|id| id.trim().parse().is_ok_and(|id: u64| id != 0))
    };
    nodes.filter_map(Result::ok).filter(is_one).count()
}

/// How many devices a variable leaves; `None` if it says nothing. What follows a device that cannot be is hidden.
fn visible(name: &str) -> Option<usize> {
    let text = std::env::var(name).ok()?;
    Some(listed(&text))
}

fn listed(text: &str) -> usize {
    let devices = text.split(',').map(str::trim);
    devices.take_while(|device| !device.is_empty() && !device.starts_with('-')).count()
}

/// The processors for each of `workers`: those of one NUMA node, as evenly as can be. `None` where there is only one node,
/// or where the nodes cannot be read: then nobody is bound.
pub(super) fn near_processors(workers: usize) -> Option<Vec<Vec<usize>>> {
    nodes(Path::new("/sys/devices/system/node")).and_then(|nodes| share(&nodes, workers))
}

fn nodes(folder: &Path) -> Option<Vec<Vec<usize>>> {
    let mut nodes: Vec<(usize, Vec<usize>)> = fs::read_dir(folder)
        .ok()?
        .filter_map(Result::ok)
        .filter_map(|entry| {
            let number = entry.file_name().to_str()?.strip_prefix("node")?.parse().ok()?;
            let processors = range_list(fs::read_to_string(entry.path().join("cpulist")).ok()?.trim())?;
            (!processors.is_empty()).then_some((number, processors))
        })
        .collect();
    nodes.sort();
    Some(nodes.into_iter().map(|(_, processors)| processors).collect())
}

fn share(nodes: &[Vec<usize>], workers: usize) -> Option<Vec<Vec<usize>>> {
    (nodes.len() > 1)
        .then(|| (0..workers).map(|worker| nodes[worker * nodes.len() / workers].clone()).collect())
}

/// As the kernel writes sets: `0-3,8,10-11`.
fn range_list(text: &str) -> Option<Vec<usize>> {
    let mut numbers = Vec::new();
    for part in text.split(',').filter(|part| !part.is_empty()) {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        numbers.extend(first.parse::<usize>().ok()?..=last.parse().ok()?);
    }
    Some(numbers)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hidden_devices_do_not_count() {
        assert_eq!(["", "0", "0,1,3", "GPU-1a,GPU-2b", "0,-1,2", "-1"].map(listed), [0, 1, 3, 2, 1, 0]);
    }

    #[test]
    fn workers_are_spread_over_the_nodes_in_order() {
        let nodes = [vec![0, 1], vec![2, 3]];
        assert_eq!(share(&nodes, 4), Some(vec![vec![0, 1], vec![0, 1], vec![2, 3], vec![2, 3]]));
        assert_eq!(share(&nodes, 1), Some(vec![vec![0, 1]]));
        assert_eq!(share(&nodes[..1], 4), None, "with one node there is nothing to choose");
    }

    #[test]
    fn the_kernels_lists_are_read() {
        assert_eq!(range_list("0-3,8,10-11"), Some(vec![0, 1, 2, 3, 8, 10, 11]));
        assert_eq!(range_list(""), Some(vec![]));
        assert_eq!(range_list("a-b"), None);
    }
}
