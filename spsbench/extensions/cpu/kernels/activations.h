/* The activations that there are: a function of floats in activations.c, and its name here. */

#pragma once

#define ACTIVATIONS(EACH) EACH(silu) EACH(relu) EACH(gelu) EACH(gelu_tanh)
