// Hyperparameters that plait need not read: what they say is in the shapes of tensors too, or has
// no part in what a model computes.
#pragma once

#include "model/hparams.h"

namespace plait {

// Throws ModelError if the file has a hyperparameter that nothing has read and that is not on the
// lists: it may change what the model computes, and logits would be wrong without a word.
void expect_all_keys_read(const Hparams& hparams);

}  // namespace plait
