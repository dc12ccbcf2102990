//! The rules as text cases with pictures, in `testdata`, and what texts cannot say.

mod cases;
mod messages;
mod races;
mod rules;
