#include "model/vision/projector.h"

#include <algorithm>

#include "model/step.h"

namespace plait {
namespace {

ModelInfo info_of(const ProjectorForm& form) {
    const auto n_parts = static_cast<int>(form.parts.size());
    ModelInfo info;
    info.arch = "clip";
    info.n_layers = 1;
    info.width = static_cast<int>(form.parts.front().out.type.shape[0]) * n_parts;
    info.given_width = form.width * n_parts;
    info.causal = false;
    info.has_decoder = false;
    return info;
}

}  // namespace

ProjectorPart read_projector_part(const Weights& w, const ProjectorNames& names, int64_t width) {
    ProjectorPart part;
    const auto rows = [&](const std::string& name) {
        return std::max<int64_t>(1, w.rows(name + ".weight"));  // get() refuses a missing tensor
    };
    if (!names.norm.empty()) part.norm = read_norm(w, names.norm, width);
    const int64_t inner = rows(names.in), n_embd = rows(names.out);
    part.in = w.get(names.in + ".weight", {inner, width});
    part.in_bias = w.find(names.in + ".bias", {inner});
    part.out = w.get(names.out + ".weight", {n_embd, inner});
    part.out_bias = w.find(names.out + ".bias", {n_embd});
    return part;
}

Projector::Projector(ProjectorForm form) : Model(info_of(form)), form_(std::move(form)) {}

void Projector::build_decoder(Step& step) const {
    const Value given = step.given(info().given_width);
    Value all;
    for (size_t i = 0; i < form_.parts.size(); ++i) {
        const ProjectorPart& w = form_.parts[i];
        Value x = form_.parts.size() == 1
                      ? given
                      : slice(given, static_cast<int64_t>(i) * form_.width, form_.width);
        if (form_.joint) x = linear(x, step.weight(form_.joint));
        if (w.norm.applies) x = normalize(step, x, w.norm, form_.norm);
        if (w.in)
            x = activate(linear(x, step.weight(w.in), step.weight(w.in_bias)), Activation::gelu);
        x = linear(x, step.weight(w.out), step.weight(w.out_bias));
        all = all ? concat(all, x) : x;
    }
    step.emit_hidden(step.keep_outputs(all));
}

}  // namespace plait
