//! What a reader does with a variant that it does not know.
//!
//! Fields have numbers, so a reader skips those it has never heard of. A variant is another matter: it says *what* this
//! is, and nobody can skip the meaning of a verdict. So every enum that travels has one of four policies, listed on
//! `docs/protocol/wire.md`; a field or an element whose policy is not "part" names its decoder here.
//!
//! minicbor reads an optional field as absent if anything inside it, however deep, is an unknown variant, and goes on
//! in the middle of it. A call with a quantisation of the future would be taken for one with none. [`whole`] is for
//! optional fields that must not be read away like that.
//!
//! The invariant: after each of these the decoder stands behind the item, or the message is refused.

use minicbor::decode::Error;
use minicbor::{Decode, Decoder};

/// A reason that stands for all those that this version does not know.
pub(crate) trait Vague {
    /// Says that it is one of those.
    const UNKNOWN: Self;
}

/// Keeps [`Error::is_unknown_variant`] from being taken for "leave this field out" further up.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct Hardened(String);

/// Whether bytes are no message because they hold what only a newer version knows.
pub(super) fn is_of_the_future(error: &Error) -> bool {
    let cause = std::error::Error::source(error);
    error.is_unknown_variant() || cause.is_some_and(<dyn std::error::Error>::is::<Hardened>)
}

/// The next item; none if it is of a variant, or holds one, that is not known. The decoder stands behind it.
fn known<'b, C, T: Decode<'b, C>>(decoder: &mut Decoder<'b>, context: &mut C) -> Result<Option<T>, Error> {
    let start = decoder.position();
    match T::decode(decoder, context) {
        Ok(item) => Ok(Some(item)),
        Err(error) if error.is_unknown_variant() => {
            decoder.set_position(start);
            decoder.skip()?;
            Ok(None)
        }
        Err(error) => Err(error),
    }
}

/// Policy *part*, for an optional field: there, or not there, or the whole message is refused.
pub(crate) fn whole<'b, C, T: Decode<'b, C>>(
    decoder: &mut Decoder<'b>,
    context: &mut C,
) -> Result<Option<T>, Error> {
    Option::<T>::decode(decoder, context).map_err(|error| {
        if error.is_unknown_variant() { Error::custom(Hardened(error.to_string())) } else { error }
    })
}

/// Policy *skip*, for an optional field: what is not known counts as not there.
pub(crate) fn absent<'b, C, T: Decode<'b, C>>(
    decoder: &mut Decoder<'b>,
    context: &mut C,
) -> Result<Option<T>, Error> {
    known::<C, Option<T>>(decoder, context).map(Option::flatten)
}

/// Policy *skip*, for a list: elements that are not known are left out.
pub(crate) fn left_out<'b, C, T: Decode<'b, C>>(
    decoder: &mut Decoder<'b>,
    context: &mut C,
) -> Result<Vec<T>, Error> {
    let mut items = Vec::new();
    elements(decoder, |decoder| {
        items.extend(known(decoder, context)?);
        Ok(())
    })?;
    Ok(items)
}

/// Policy *vague*: what is not known is read as [`Vague::UNKNOWN`].
pub(crate) fn vague<'b, C, T: Vague + Decode<'b, C>>(
    decoder: &mut Decoder<'b>,
    context: &mut C,
) -> Result<T, Error> {
    known(decoder, context).map(|item| item.unwrap_or(T::UNKNOWN))
}

/// Policy *vague*, for the reason in each pair of a list.
pub(crate) fn vague_pairs<'b, C, K: Decode<'b, C>, T: Vague + Decode<'b, C>>(
    decoder: &mut Decoder<'b>,
    context: &mut C,
) -> Result<Vec<(K, T)>, Error> {
    let mut pairs = Vec::new();
    elements(decoder, |decoder| {
        let start = decoder.position();
        if decoder.array()? != Some(2) {
            return Err(Error::message("expected a pair").at(start));
        }
        pairs.push((K::decode(decoder, context)?, vague(decoder, context)?));
        Ok(())
    })?;
    Ok(pairs)
}

/// Calls `read` at every element of the array that comes next. Nothing is allocated for a length that is only claimed.
fn elements<'b>(
    decoder: &mut Decoder<'b>,
    mut read: impl FnMut(&mut Decoder<'b>) -> Result<(), Error>,
) -> Result<(), Error> {
    let start = decoder.position();
    let length =
        decoder.array()?.ok_or_else(|| Error::message("expected an array of known length").at(start))?;
    (0..length).try_for_each(|_| read(decoder))
}
