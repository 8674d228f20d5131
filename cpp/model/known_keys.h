// Hyperparameters that plait does not need to read, because the shapes of tensors imply their value
// or because they do not affect what a model computes.
#pragma once

#include "model/hparams.h"

namespace plait {

// Throws ModelError if the file has a hyperparameter that was not read and is not in the list of
// harmless ones: it may change what the model computes, and the logits would silently be wrong.
void expect_all_keys_read(const Hparams& hparams);

}  // namespace plait
