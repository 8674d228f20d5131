// Conversion of GGUF metadata to Python values: int, float, bool, str, ndarray, list of str.
#include "gguf/metadata.h"

#include "model.h"
#include "numpy.h"

namespace plait::python {
namespace {

py::object array_value(const gguf::Array& array) {
    return std::visit(
        [&]<typename T>(const std::vector<T>& items) -> py::object {
            if constexpr (std::is_same_v<T, std::string>) {
                py::list strings(items.size());
                for (size_t i = 0; i < items.size(); ++i) strings[i] = from_utf8(items[i]);
                return strings;
            } else {
                py::array_t<T> numbers(static_cast<py::ssize_t>(items.size()), items.data());
                if (array.element != gguf::ValueType::boolean) return numbers;
                return numbers.attr("astype")("bool");
            }
        },
        array.data);
}

py::object value_of(const gguf::Value& value) {
    return std::visit(
        []<typename T>(const T& x) -> py::object {
            if constexpr (std::is_same_v<T, std::string>)
                return from_utf8(x);
            else if constexpr (std::is_same_v<T, gguf::Array>)
                return array_value(x);
            else
                return py::cast(x);
        },
        value.data());
}

}  // namespace

py::dict to_dict(const gguf::Metadata& metadata) {
    py::dict result;
    for (const gguf::Entry& entry : metadata) result[from_utf8(entry.key)] = value_of(entry.value);
    return result;
}

}  // namespace plait::python
