//! The model: a small network of fully connected layers, trained by stochastic gradient descent with momentum.
//!
//! Written by hand so that everything that must be equal on all replicas can be seen on one page. A replica is
//! two lists of numbers, parameters and velocities: the tensors of a shared state. Both change only in [`descend`], which
//! takes the averaged gradient; the gradient is bit-identical on every member because the average is, and the arithmetic
//! here has one fixed order. So replicas that were equal once stay equal to the bit, and a newcomer that gets
//! both lists is one of them.

use crate::data::{CLASSES, Dice, Image, PIXELS};
use outlast::SharedState;
use outlast::state::StateError;

/// The width of each layer, from pixels to classes.
const WIDTHS: [usize; 4] = [PIXELS, 64, 32, CLASSES];
/// Everybody begins with the same numbers.
const SEED: u64 = 4;
const LEARNING_RATE: f32 = 0.02;
const MOMENTUM: f32 = 0.9;

/// The keys of a replica.
const PARAMETERS: &str = "parameters";
const VELOCITIES: &str = "velocities";

/// The network as far as it is read: weights and biases of one layer after the other.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Model<'a> {
    parameters: &'a [f32],
}

/// A gradient and the loss that it lowers, both as means over a member's images.
#[derive(Debug)]
pub(crate) struct Gradient {
    /// One tensor per layer.
    pub(crate) layers: Vec<Vec<f32>>,
    pub(crate) loss: f32,
}

impl Gradient {
    /// XXH3-128 of all layers.
    pub(crate) fn digest(&self) -> String {
        let bytes: Vec<u8> = self.layers.iter().flatten().flat_map(|number| number.to_le_bytes()).collect();
        format!("{:032x}", twox_hash::XxHash3_128::oneshot(&bytes))
    }
}

/// How many numbers a layer has: a row of weights for each output, then a bias for each.
fn size(layer: usize) -> usize {
    WIDTHS[layer + 1] * (WIDTHS[layer] + 1)
}

const LAYERS: usize = WIDTHS.len() - 1;

/// A replica that has learned nothing: parameters, and the optimiser's memory, one number for each.
pub(crate) fn fresh() -> Result<SharedState, StateError> {
    let mut dice = Dice::new(SEED);
    let mut parameters = Vec::new();
    for layer in 0..LAYERS {
        let inputs = WIDTHS[layer];
        // Spread so that signals neither fade nor grow from layer to layer.
        let spread = (6.0 / inputs as f32).sqrt();
        parameters.extend((0..inputs * WIDTHS[layer + 1]).map(|_| dice.signed() * spread));
        parameters.extend((0..WIDTHS[layer + 1]).map(|_| 0.0));
    }
    let count = parameters.len();
    let mut state = SharedState::new();
    state.insert(PARAMETERS, parameters, &[count as u64])?;
    state.insert(VELOCITIES, vec![0.0_f32; count], &[count as u64])?;
    state.set_revision(Some(0));
    Ok(state)
}

/// One step of the optimiser. The gradient must be the same on all replicas.
pub(crate) fn descend(state: &mut SharedState, gradient: &Gradient) {
    let velocities = state.get_mut::<f32>(VELOCITIES).unwrap_or_default();
    for (velocity, slope) in velocities.iter_mut().zip(gradient.layers.iter().flatten()) {
        *velocity = MOMENTUM * *velocity + slope;
    }
    let velocities = velocities.to_vec();
    let parameters = state.get_mut::<f32>(PARAMETERS).unwrap_or_default();
    for (parameter, velocity) in parameters.iter_mut().zip(velocities) {
        *parameter -= LEARNING_RATE * velocity;
    }
}

impl<'a> Model<'a> {
    /// The network that a replica holds.
    pub(crate) fn of(state: &'a SharedState) -> Self {
        Self { parameters: state.get(PARAMETERS).unwrap_or_default() }
    }

    /// The parameters of each layer.
    fn layers(&self) -> [&[f32]; LAYERS] {
        let mut rest = self.parameters;
        std::array::from_fn(|layer| {
            let (this, others) = rest.split_at(size(layer));
            rest = others;
            this
        })
    }

    /// What each layer gives for an image: the pixels first, scores for the digits last.
    fn forward(&self, image: &Image) -> Vec<Vec<f32>> {
        let mut given = vec![image.pixels.to_vec()];
        for (layer, parameters) in self.layers().into_iter().enumerate() {
            let (weights, biases) = parameters.split_at(WIDTHS[layer] * WIDTHS[layer + 1]);
            let inputs = &given[layer];
            let output = |(row, bias): (&[f32], &f32)| {
                let sum = bias + dot(row, inputs);
                if layer + 1 < LAYERS { sum.max(0.0) } else { sum }
            };
            let outputs = weights.chunks_exact(WIDTHS[layer]).zip(biases).map(output).collect();
            given.push(outputs);
        }
        given
    }

    /// The gradient of the cross-entropy over these images, by back-propagation.
    pub(crate) fn gradient(&self, images: &[&Image]) -> Gradient {
        let mut layers: Vec<_> = (0..LAYERS).map(|layer| vec![0.0; size(layer)]).collect();
        let mut loss = 0.0;
        let share = 1.0 / images.len().max(1) as f32;
        for image in images {
            let given = self.forward(image);
            let mut errors = softmax(&given[LAYERS]);
            loss -= errors[image.digit].max(f32::MIN_POSITIVE).ln() * share;
            errors[image.digit] -= 1.0;
            for layer in (0..LAYERS).rev() {
                let width = WIDTHS[layer];
                let (weights, biases) = layers[layer].split_at_mut(width * WIDTHS[layer + 1]);
                for ((row, bias), error) in weights.chunks_exact_mut(width).zip(biases).zip(&errors) {
                    add_scaled(row, &given[layer], error * share);
                    *bias += error * share;
                }
                errors = self.errors_below(layer, &errors, &given[layer]);
            }
        }
        Gradient { layers, loss }
    }

    /// What the outputs' errors mean for the inputs of a layer. An input that was cut off at zero has none.
    fn errors_below(&self, layer: usize, errors: &[f32], inputs: &[f32]) -> Vec<f32> {
        let mut below = vec![0.0; inputs.len()];
        for (row, error) in self.layers()[layer].chunks_exact(inputs.len()).zip(errors) {
            add_scaled(&mut below, row, *error);
        }
        for (error, input) in below.iter_mut().zip(inputs) {
            if *input <= 0.0 {
                *error = 0.0;
            }
        }
        below
    }

    /// The part of these images that it reads right.
    pub(crate) fn accuracy(&self, images: &[Image]) -> f32 {
        let right = |image: &&Image| {
            let given = self.forward(image);
            let best = given[LAYERS].iter().enumerate().max_by(|one, other| one.1.total_cmp(other.1));
            best.is_some_and(|(digit, _)| digit == image.digit)
        };
        images.iter().filter(right).count() as f32 / images.len().max(1) as f32
    }
}

fn dot(one: &[f32], other: &[f32]) -> f32 {
    one.iter().zip(other).map(|(a, b)| a * b).sum()
}

fn add_scaled(to: &mut [f32], from: &[f32], scale: f32) {
    for (to, from) in to.iter_mut().zip(from) {
        *to += from * scale;
    }
}

/// Scores as probabilities.
fn softmax(scores: &[f32]) -> Vec<f32> {
    let highest = scores.iter().copied().fold(f32::MIN, f32::max);
    let powers: Vec<_> = scores.iter().map(|score| (score - highest).exp()).collect();
    let sum: f32 = powers.iter().sum();
    powers.into_iter().map(|power| power / sum).collect()
}
