// The projector of an image encoder: from patches that were joined to the embeddings of a text
// model.
#pragma once

#include <string>
#include <vector>

#include "graph/op_enums.h"
#include "model/blocks/norm.h"
#include "model/model.h"

namespace plait {

// y = W2 act(W1 n(x) + b1) + b2
struct ProjectorPart {
    NormWeights norm;      // [width]; optional
    Weight in, in_bias;    // [inner, width], [inner]; without `in`, y = W2 n(x) + b2
    Weight out, out_bias;  // [n_embd, inner], [n_embd]
};
// The names of a part's tensors; an empty norm is not applied.
struct ProjectorNames {
    std::string norm, in, out;
};

struct ProjectorForm {
    int width = 0;  // of one part of an input row
    Norm norm;
    Weight joint;  // [joint width, width]; optional, multiplies rows before the first part
    std::vector<ProjectorPart> parts;
};

// Reads a part whose rows have `width` elements.
ProjectorPart read_projector_part(const Weights& weights, const ProjectorNames& names,
                                  int64_t width);

// Input and output rows consist of one section for each part.
class Projector final : public Model {
public:
    explicit Projector(ProjectorForm form);

    // One layer that nothing uses: a memory without any layer has no sequences.
    MemorySpecs memory_specs() const override { return {{WithinSpec{}}}; }

protected:
    void build_decoder(Step& step) const override;

private:
    ProjectorForm form_;
};

}  // namespace plait
