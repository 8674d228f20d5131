#include "runtime/step/calls.h"

#include "base/error.h"
#include "base/text.h"

namespace plait {

Calls calls_of(const ModelInfo& model, bool causal, bool hidden, std::optional<Pooling> pooling) {
    const bool pools = pooling.value_or(Pooling::none) != Pooling::none;
    CallForm decode{.name = "decode", .causal = causal, .outputs = {.hidden = hidden || pools}};
    if (!model.has_decoder) {
        decode.name = "encode";
        decode.graph = GraphKind::encode;
        decode.outputs = {.logits = false, .hidden = true};
    }
    if (decode.outputs.hidden) decode.outputs.pooling = pooling.value_or(model.pooling);
    if (decode.outputs.pooling == Pooling::rank && model.n_scores == 0)
        throw InvalidArgument(text("pooling: \"rank\" needs a head that scores, which this ",
                                   model.arch,
                                   " model has none of; expected \"none\", \"mean\", "
                                   "\"cls\" or \"last\""));
    if (!model.has_decoder) return {decode, decode, EncodeMemory::same};

    CallForm encode = decode;
    encode.name = "encode";
    encode.graph = GraphKind::encode;
    if (!model.has_encoder) return {decode, encode, EncodeMemory::own};
    encode.step = StepKind::encode;
    encode.causal = false;
    encode.outputs = {.logits = false, .hidden = hidden};
    return {decode, encode, EncodeMemory::shared};
}

}  // namespace plait
