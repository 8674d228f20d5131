#include "model/control_vector.h"

#include <algorithm>
#include <charconv>

#include "base/error.h"
#include "base/text.h"
#include "gguf/keys.h"
#include "gguf/text.h"
#include "model/hparams.h"
#include "tensor/convert.h"

namespace plait {
namespace {

// Any number of rows is accepted up to the first limit, which is twice what the largest models need.
constexpr int64_t kMinMaxElements = 1 << 22;  // 16 MiB
constexpr int64_t kMaxRowsPerDirection = 16;

// The N of "direction.N", at least 1; 0 if the name has another form.
int64_t layer_of(std::string_view name) {
    constexpr std::string_view kPrefix = "direction.";
    if (!name.starts_with(kPrefix)) return 0;
    const char* const end = name.data() + name.size();
    int64_t layer = 0;
    const auto [stop, error] = std::from_chars(name.data() + kPrefix.size(), end, layer);
    return error == std::errc() && stop == end && layer < Hparams::kMaxLayers ? layer : 0;
}

}  // namespace

ControlVector read_control_vector(const gguf::File& file) {
    const auto fail = [&](const gguf::TensorInfo& tensor, const std::string& why) {
        throw ModelError(text(file.path(), ": tensor ", gguf::quoted(tensor.name), why));
    };
    const std::string& architecture = file.metadata().string(gguf::keys::kArchitecture);
    if (architecture != "controlvector")
        throw ModelError(text(file.path(), ": ", gguf::keys::kArchitecture,
                              ": expected 'controlvector', got ", gguf::quoted(architecture)));
    ControlVector result;
    const gguf::TensorInfo* last = nullptr;  // the one of the last layer
    for (const gguf::TensorInfo& tensor : file.tensors()) {
        const int64_t layer = layer_of(tensor.name);
        if (layer <= 0) fail(tensor, ": expected direction.N with N from 1");
        const Shape& shape = tensor.type.shape;
        if (result.width == 0) result.width = shape[-1];
        if (shape.elements() != result.width || tensor.type.dtype == DType::i32)
            fail(tensor, text(" is ", to_string(tensor.type), ", expected ", result.width,
                              " real numbers"));
        if (last == nullptr || layer > layer_of(last->name)) last = &tensor;
    }
    if (last == nullptr || result.width == 0)
        throw ModelError(file.path() + ": the control vector has no tensor direction.N");
    // A row for each layer, although the file may have few directions: not out of proportion to it.
    const int64_t n_rows = layer_of(last->name) + 1;
    const int64_t max_rows =
        std::max(kMinMaxElements / result.width, kMaxRowsPerDirection * std::ssize(file.tensors()));
    if (n_rows > max_rows)
        fail(*last,
             text(" needs ", n_rows, " rows of ", result.width, " numbers, but the file has ",
                  file.tensors().size(), " directions; expected at most ", max_rows, " rows"));
    const auto width = static_cast<size_t>(result.width);
    result.rows.resize(static_cast<size_t>(n_rows) * width);
    std::vector<std::byte> bytes;
    for (const gguf::TensorInfo& tensor : file.tensors()) {
        bytes.resize(tensor.bytes);
        file.read(tensor, 0, bytes);
        dequantize(tensor.type.dtype, bytes.data(),
                   result.rows.data() + static_cast<size_t>(layer_of(tensor.name)) * width, width);
    }
    return result;
}

}  // namespace plait
