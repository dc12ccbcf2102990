//! What a mistake of ours costs (rule 40): a panic in a peer that dials. Nobody waits for something that is gone.

mod peers;

use outlast::planted::{Place, is_planted, plant};

/// A session waits for the end of the connection that it asked for, and dials again only then.
#[test]
fn a_peer_whose_dial_panics_dials_again() {
    let coordinator = peers::coordinator();
    let comm = peers::peer(&coordinator, "dials");
    let place = Place::Dial(coordinator.address().to_string());
    plant(place.clone());
    comm.connect(1).unwrap();
    assert!(!is_planted(&place), "it was stepped on");
}
