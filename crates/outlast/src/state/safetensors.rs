//! The safetensors format: a length, a header in JSON, and the tensors' bytes without gaps.
//!
//! Only what a checkpoint needs: a header for an outline, and the places of an outline's tensors in a header. Larger
//! elements come first, so that every tensor is aligned. A tensor that does not lie in plain order is written in the
//! order of its memory, with its axes in that order.

use outlast_proto::collective::DataType;
use outlast_proto::state::{Outline, TensorInfo};
use serde_json::{Map, Value, json};
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt as _;

/// Longest header that is read; the format allows no more.
const HEADER_BYTES_MAX: u64 = 100_000_000;

/// Where the tensors of an outline are in a file, in the order of the outline.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Places {
    /// The first byte of each.
    pub(super) starts: Vec<u64>,
    /// The length of the whole file.
    pub(super) end: u64,
}

fn name(data_type: DataType) -> String {
    data_type.name().to_uppercase()
}

/// The lengths of the axes in the order of memory.
fn shape(tensor: &TensorInfo) -> Vec<u64> {
    if tensor.layout.is_flat() {
        return tensor.shape.clone();
    }
    let long: Vec<_> = tensor.shape.iter().copied().filter(|axis| *axis != 1).collect();
    tensor.layout.order().iter().filter_map(|axis| long.get(usize::from(*axis)).copied()).collect()
}

/// The beginning of a file, up to the first tensor's bytes, and the places of all.
pub(super) fn header(outline: &Outline) -> (Vec<u8>, Places) {
    let tensors = outline.tensors();
    let mut order: Vec<_> = (0..tensors.len()).collect();
    order.sort_by_key(|place| std::cmp::Reverse(tensors[*place].data_type.size()));
    let (mut entries, mut starts, mut end) = (Map::new(), vec![0; tensors.len()], 0);
    entries.insert("__metadata__".to_owned(), json!({ "format": "pt" }));
    for place in order {
        let tensor = &tensors[place];
        starts[place] = end;
        end += tensor.bytes().unwrap_or_default();
        let entry = json!({
            "dtype": name(tensor.data_type), "shape": shape(tensor), "data_offsets": [starts[place], end],
        });
        entries.insert(tensor.key.clone(), entry);
    }
    let mut text = Value::Object(entries).to_string();
    // The format asks for it: the first tensor begins at a multiple of eight.
    text.extend(std::iter::repeat_n(' ', text.len().next_multiple_of(8) - text.len()));
    let mut bytes = (text.len() as u64).to_le_bytes().to_vec();
    bytes.extend(text.into_bytes());
    let begin = bytes.len() as u64;
    starts.iter_mut().for_each(|start| *start += begin);
    (bytes, Places { starts, end: begin + end })
}

/// Finds the tensors of `outline` in a file. In words, if something else is there.
pub(super) fn find(file: &File, outline: &Outline) -> io::Result<Result<Places, String>> {
    let length = file.metadata()?.len();
    let mut bytes = [0; 8];
    if length < 8 {
        return Ok(Err(format!("a file of {length} bytes")));
    }
    file.read_exact_at(&mut bytes, 0)?;
    let header = u64::from_le_bytes(bytes);
    if header > HEADER_BYTES_MAX || 8 + header > length {
        return Ok(Err(format!("a header of {header} bytes in a file of {length}")));
    }
    let mut text = vec![0; header as usize];
    file.read_exact_at(&mut text, 8)?;
    Ok(places(&text, 8 + header, length, outline))
}

fn places(header: &[u8], begin: u64, length: u64, outline: &Outline) -> Result<Places, String> {
    let entries: Map<String, Value> =
        serde_json::from_slice(header).map_err(|error| format!("a header that is not JSON: {error}"))?;
    let known = |key: &&String| *key != "__metadata__" && outline.place(key).is_err();
    if let Some(key) = entries.keys().find(known) {
        return Err(format!("the key {key:?}, which this state has not"));
    }
    let mut starts = Vec::with_capacity(outline.tensors().len());
    for tensor in outline.tensors() {
        let key = &tensor.key;
        let entry = entries.get(key).ok_or_else(|| format!("no tensor of the key {key:?}"))?;
        let (data_type, shape) = (name(tensor.data_type), shape(tensor));
        if entry["dtype"] != data_type.as_str() || entry["shape"] != json!(shape) {
            let (there, found) = (&entry["dtype"], &entry["shape"]);
            return Err(format!("{key:?} as {there} of shape {found}, and here it is {data_type} {shape:?}"));
        }
        let offset = |at: usize| entry["data_offsets"][at].as_u64();
        let bytes = tensor.bytes().unwrap_or_default();
        let start = offset(0).filter(|start| start.checked_add(bytes) == offset(1));
        let start = start.and_then(|start| start.checked_add(begin));
        let fits = |start: &u64| start.checked_add(bytes).is_some_and(|end| end <= length);
        starts.push(start.filter(fits).ok_or_else(|| format!("{key:?} beyond the end of the file"))?);
    }
    Ok(Places { starts, end: length })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::communicator::Layout;

    fn outline() -> Outline {
        let plain = |key: &str, data_type, shape: &[u64]| TensorInfo::new(key, data_type, shape.to_vec());
        let turned =
            TensorInfo { layout: Layout::new(&[2, 0]).unwrap(), ..plain("t", DataType::BF16, &[3, 1, 5]) };
        let tensors = [
            plain("a", DataType::U8, &[3]),
            plain("b", DataType::F64, &[2, 2]),
            turned,
            plain("z", DataType::Bool, &[0]),
        ];
        Outline::new(tensors).unwrap()
    }

    #[test]
    fn a_header_is_found_again_and_tensors_are_aligned() {
        let (bytes, written) = header(&outline());
        let begin = bytes.len() as u64;
        assert_eq!(begin % 8, 0);
        assert_eq!(written.starts.iter().map(|start| start - begin).collect::<Vec<_>>(), [62, 0, 32, 65]);
        let text = String::from_utf8(bytes[8..].to_vec()).unwrap();
        assert!(text.contains(r#""t":{"dtype":"BF16","shape":[5,3],"data_offsets":[32,62]}"#), "{text}");
        assert_eq!(places(&bytes[8..], begin, written.end, &outline()), Ok(written));
    }

    #[test]
    fn whatever_is_wrong_is_named() {
        let (bytes, written) = header(&outline());
        let with =
            |outline: &Outline| places(&bytes[8..], bytes.len() as u64, written.end, outline).unwrap_err();
        let mut more = outline();
        more.insert(TensorInfo::new("c", DataType::F32, [1])).unwrap();
        assert!(with(&more).contains("no tensor of the key \"c\""));
        let fewer = Outline::new(outline().tensors()[1..].to_vec()).unwrap();
        assert!(with(&fewer).contains("the key \"a\", which this state has not"));
        let mut other = outline().tensors().to_vec();
        other[0].shape = vec![4];
        let text = with(&Outline::new(other).unwrap());
        assert!(text.contains("\"a\"") && text.contains("[3]") && text.contains("[4]"), "{text}");
        let short = places(&bytes[8..], bytes.len() as u64, written.end - 1, &outline()).unwrap_err();
        assert!(short.contains("\"a\" beyond the end"), "{short}");
        for broken in [&b"{"[..], b"[]", b"{\"a\":7}", b"\xff"] {
            assert!(places(broken, 8, 100, &outline()).is_err());
        }
    }
}
