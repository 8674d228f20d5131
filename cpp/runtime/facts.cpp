#include "runtime/facts.h"

#include <algorithm>
#include <iomanip>
#include <sstream>

#include "base/error.h"
#include "base/hash.h"
#include "base/text.h"
#include "gguf/keys.h"
#include "gguf/text.h"

namespace plait {
namespace {

constexpr size_t kMaxSamples = 256;  // tensors
constexpr uint64_t kSampleBytes = 64;
constexpr const char* kLayers = "layers";  // a fact of contexts that do not run all layers

// A stream that throws if allocation fails; by default a stream discards the output.
class TextStream : public std::ostringstream {
public:
    TextStream() { exceptions(badbit); }
};

std::string digest(std::string_view text) {
    TextStream out;
    out << std::hex << std::setfill('0') << std::setw(16) << checksum(text);
    return std::move(out).str();
}

template <typename T>
void append(std::string& bytes, const T& value) {
    bytes.append(reinterpret_cast<const char*>(&value), sizeof value);
}

struct Show {
    template <typename Number>
    std::string operator()(const Number& number) const {
        TextStream out;
        out << std::setprecision(17) << +number;
        return std::move(out).str();
    }
    std::string operator()(const std::string& value) const { return value; }
    std::string operator()(const gguf::Array& array) const {
        std::string bytes;
        std::visit(
            [&](const auto& values) {
                for (const auto& value : values) bytes += Show{}(value) += '\n';
            },
            array.data);
        return text(array.size(), " values of digest ", digest(bytes));
    }
};

Fact tensor_directory(const gguf::File& file) {
    std::string bytes;
    for (const gguf::TensorInfo& tensor : file.tensors())
        bytes += text(tensor.name, ' ', to_string(tensor.type), '\n');
    return {"tensors", text(file.tensors().size(), " of digest ", digest(bytes))};
}

// Samples the middle bytes of tensors that are evenly spread over the file.
Fact weight_sample(const gguf::File& file) {
    const auto tensors = file.tensors();
    const size_t n = std::min(tensors.size(), kMaxSamples);
    std::string bytes(n * kSampleBytes, '\0');
    const auto sample = std::as_writable_bytes(std::span(bytes));
    for (size_t i = 0; i < n; ++i) {
        const gguf::TensorInfo& tensor = tensors[i * tensors.size() / n];
        const uint64_t size = std::min(tensor.bytes, kSampleBytes);
        file.read(tensor, (tensor.bytes - size) / 2, sample.subspan(i * kSampleBytes, size));
    }
    return {"weights", text("a sample of digest ", digest(bytes))};
}

// The bytes of all parameters of a key rotation, for a digest.
std::string rotation(const Model::KeyRotation& how) {
    const Rope& rope = how.rope;
    std::string bytes = how.factors ? text(how.factors.id) : "none";
    for (const double x :
         {rope.base, rope.scale, rope.extrapolation, rope.magnitude, rope.beta_fast, rope.beta_slow,
          static_cast<double>(rope.n_ctx_original), static_cast<double>(rope.n_rot)})
        append(bytes, x);
    append(bytes, rope.interleaved);
    append(bytes, rope.sections);
    if (rope.in_turn) append(bytes, rope.in_turn);
    append(bytes, how.begin);
    return bytes;
}

}  // namespace

Facts facts_of(const gguf::File& file) {
    const gguf::Metadata& metadata = file.metadata();
    const std::string architecture = metadata.string(gguf::keys::kArchitecture);
    Facts facts;
    for (const gguf::Entry& entry : metadata)
        if (entry.key.starts_with(architecture + "."))
            facts.push_back({entry.key, std::visit(Show{}, entry.value.data())});
    std::ranges::sort(facts, {}, &Fact::name);
    facts.insert(facts.begin(), {"architecture", architecture});
    facts.push_back(tensor_directory(file));
    facts.push_back(weight_sample(file));
    return facts;
}

Facts facts_of(const Model& model, const MemoryLayout& layout, const CacheSettings& settings) {
    Facts facts;
    const LayerRange& layers = settings.build.layers;
    if (!layers.is_whole(model.info().n_layers))
        facts.push_back({kLayers, text(layers.begin, " to ", layers.end - 1)});
    std::string rotations;
    for (const StorageInfo& storage : layout.storage) {
        const std::string transform =
            storage.hadamard ? text(", Hadamard transform of ", storage.hadamard) : "";
        facts.push_back(
            {layout.storage_name(storage), text(info(storage.dtype).name, " [", storage.n_heads,
                                                ", ", storage.head_dim, "]", transform)});
        if (storage.rotated)
            rotations += rotation(model.key_rotation(storage.id.layer, settings.build));
    }
    facts.push_back({"rotation of keys", text("of digest ", digest(rotations))});
    facts.push_back({"causal", settings.causal ? "True" : "False"});
    const bool has_window = std::ranges::any_of(layout.groups, [](const GroupInfo& group) {
        return group.n_rows > 0 && group.window.kind != WindowKind::full;
    });
    if (has_window) facts.push_back({"swa_full", settings.swa_full ? "True" : "False"});
    return facts;
}

void check_facts(const Facts& state, const Facts& here) {
    const auto [theirs, ours] = std::ranges::mismatch(state, here);
    if (theirs == state.end() && ours == here.end()) return;
    const auto show = [](const Facts& facts, const std::string& name) {
        const auto found = std::ranges::find(facts, name, &Fact::name);
        if (found != facts.end()) return gguf::quoted(found->value);
        return std::string(name == kLayers ? "all" : "unknown");
    };
    // Either side may have facts that the other lacks.
    const bool lacks_ours =
        theirs == state.end() ||
        (ours != here.end() && std::ranges::find(state, ours->name, &Fact::name) == state.end());
    const std::string& name = lacks_ours ? ours->name : theirs->name;
    throw StateError(text("the state does not fit: ", gguf::quoted(name), " is ", show(state, name),
                          " in it, expected ", show(here, name)));
}

}  // namespace plait
