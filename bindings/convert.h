// Conversion of Python arguments to C++ values, with errors that name the argument and its value, and
// of some C++ values to Python ones.
// The argument types below accept any object; each defines the type shown in signatures and stubs.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/text.h"
#include "module.h"

namespace plait::gguf {
class Metadata;
}

namespace plait::python {

inline bool any_object(PyObject*) { return true; }

#define PLAIT_OBJECT(NAME)                                    \
    class NAME : public py::object {                          \
    public:                                                   \
        PYBIND11_OBJECT_DEFAULT(NAME, py::object, any_object) \
    };
PLAIT_OBJECT(Integer)  // an int or an object with __index__: a NumPy integer, a Sequence
PLAIT_OBJECT(OptionalInteger)
PLAIT_OBJECT(SequenceArg)  // a Sequence or an id
PLAIT_OBJECT(OptionalSequenceArg)
PLAIT_OBJECT(OptionalSequences)  // an iterable of Sequences and ids, or None
PLAIT_OBJECT(SequencesArg)       // one Sequence or id, or an iterable of them; None: all sequences
PLAIT_OBJECT(OptionalReals)      // an iterable of floats, or None
PLAIT_OBJECT(OptionalReal)       // a float or an object with __float__ or __index__
PLAIT_OBJECT(OptionalRange)      // a range, or None
PLAIT_OBJECT(Flag)               // a Python or NumPy bool
PLAIT_OBJECT(OptionalFlag)
PLAIT_OBJECT(FlagOrAuto)
PLAIT_OBJECT(Text)
PLAIT_OBJECT(OptionalText)
PLAIT_OBJECT(Ids)        // one integer or several
PLAIT_OBJECT(Positions)  // None, one integer or an array of integers
PLAIT_OBJECT(ArrayLike)
PLAIT_OBJECT(OptionalArrayLike)
PLAIT_OBJECT(LogitsChoice)  // "last", "all", "none" or a mask
PLAIT_OBJECT(PathLike)
PLAIT_OBJECT(PackedCache)  // a folder, a bool or None
PLAIT_OBJECT(BytesLike)    // an object with a contiguous buffer
PLAIT_OBJECT(ModelObject)
PLAIT_OBJECT(ContextObject)
PLAIT_OBJECT(StageList)
PLAIT_OBJECT(AdapterScales)
PLAIT_OBJECT(AdapterObject)
// Results with a more precise type in signatures than their C++ type has.
PLAIT_OBJECT(Metadata)
PLAIT_OBJECT(MetadataDict)
PLAIT_OBJECT(Tensors)
PLAIT_OBJECT(FloatRows)  // an array or None; shown as Any, so that users need no check for None
PLAIT_OBJECT(OutputObject)
PLAIT_OBJECT(Range)
#undef PLAIT_OBJECT

// Throws TypeError: "name: expected an integer, got str".
[[noreturn]] void wrong_type(const char* name, const char* expected, py::handle got);
// Returns the repr of the value in ASCII, shortened.
std::string short_repr(py::handle value);

// Returns operator.index(value).
py::object to_index(const char* name, py::handle value);

// Throws TypeError if the object is not an integer, and InvalidArgument if it does not fit int64.
int64_t to_int64(const char* name, py::handle value);

// As to_int64, but throws `Error` if the integer is outside [min, max].
template <typename Error = InvalidArgument>
int64_t to_int_between(const char* name, py::handle value, int64_t min, int64_t max) {
    int overflow = 0;
    int64_t result = 0;
    if (PyLong_CheckExact(value.ptr())) {
        result = PyLong_AsLongLongAndOverflow(value.ptr(), &overflow);
    } else {
        if (!PyIndex_Check(value.ptr())) wrong_type(name, "an integer", value);
        const py::object index = to_index(name, value);
        result = PyLong_AsLongLongAndOverflow(index.ptr(), &overflow);
    }
    if (overflow != 0 || result < min || result > max)
        throw Error(text(name, ": expected ", min, " to ", max, ", got ", short_repr(value)));
    return result;
}

template <typename Error = InvalidArgument>
int32_t to_int32(const char* name, py::handle value) {
    return static_cast<int32_t>(to_int_between<Error>(name, value, INT32_MIN, INT32_MAX));
}

double to_double(const char* name, py::handle value);
bool to_bool(const char* name, py::handle value);
std::string to_text(const char* name, py::handle value);
std::string to_path(const char* name, py::handle value);  // in the encoding of the file system

// Appends to `out` the integers of an iterable (a list, tuple, array, set, ...), or a single
// integer.
template <typename Error>
void to_int32s(const char* name, py::handle value, std::vector<int32_t>& out);

// Decodes UTF-8; keeps invalid bytes as surrogates (PEP 383).
py::str from_utf8(std::string_view bytes);
// Decodes UTF-8 for messages; shows invalid bytes as \x90, so that the result can be printed.
py::str printable(std::string_view bytes);

// The key-value pairs of a GGUF file as int, float, bool, str, ndarray and list of str.
py::dict to_dict(const gguf::Metadata& metadata);

}  // namespace plait::python

namespace pybind11::detail {

#define PLAIT_TYPE_NAME(NAME, TEXT)                    \
    template <>                                        \
    struct handle_type_name<plait::python::NAME> {     \
        static constexpr auto name = const_name(TEXT); \
    };
PLAIT_TYPE_NAME(Integer, "typing.SupportsIndex")
PLAIT_TYPE_NAME(OptionalInteger, "typing.SupportsIndex | None")
PLAIT_TYPE_NAME(OptionalRange, "range | None")
PLAIT_TYPE_NAME(SequenceArg, "typing.SupportsIndex")
PLAIT_TYPE_NAME(OptionalSequenceArg, "typing.SupportsIndex | None")
PLAIT_TYPE_NAME(OptionalSequences, "collections.abc.Iterable[typing.SupportsIndex] | None")
PLAIT_TYPE_NAME(SequencesArg,
                "typing.SupportsIndex | collections.abc.Iterable[typing.SupportsIndex] | None")
PLAIT_TYPE_NAME(OptionalReals, "collections.abc.Iterable[typing.SupportsFloat] | None")
PLAIT_TYPE_NAME(OptionalReal, "typing.SupportsFloat | typing.SupportsIndex | None")
PLAIT_TYPE_NAME(Flag, "bool")
PLAIT_TYPE_NAME(OptionalFlag, "bool | None")
PLAIT_TYPE_NAME(FlagOrAuto, "bool | str")
PLAIT_TYPE_NAME(Text, "str")
PLAIT_TYPE_NAME(OptionalText, "str | None")
PLAIT_TYPE_NAME(Ids, "typing.SupportsIndex | collections.abc.Iterable[typing.SupportsIndex]")
PLAIT_TYPE_NAME(Positions, "typing.SupportsIndex | numpy.typing.ArrayLike | None")
PLAIT_TYPE_NAME(ArrayLike, "numpy.typing.ArrayLike")
PLAIT_TYPE_NAME(OptionalArrayLike, "numpy.typing.ArrayLike | None")
PLAIT_TYPE_NAME(LogitsChoice, "str | numpy.typing.ArrayLike")
PLAIT_TYPE_NAME(PathLike, "str | os.PathLike[str]")
PLAIT_TYPE_NAME(PackedCache, "str | os.PathLike[str] | bool | None")
PLAIT_TYPE_NAME(Metadata, "types.MappingProxyType[str, typing.Any]")
PLAIT_TYPE_NAME(MetadataDict, "dict[str, typing.Any]")
PLAIT_TYPE_NAME(BytesLike, "bytes | bytearray | memoryview | numpy.typing.NDArray[numpy.uint8]")
PLAIT_TYPE_NAME(ModelObject, "Model")
PLAIT_TYPE_NAME(ContextObject, "Context")
PLAIT_TYPE_NAME(StageList, "collections.abc.Iterable[tuple[typing.Any, ...]]")
PLAIT_TYPE_NAME(AdapterScales, "collections.abc.Mapping[Adapter, float] | None")
PLAIT_TYPE_NAME(AdapterObject, "Adapter")
PLAIT_TYPE_NAME(FloatRows, "numpy.typing.NDArray[numpy.float32] | typing.Any")
PLAIT_TYPE_NAME(OutputObject, "Output")
PLAIT_TYPE_NAME(Range, "range")
PLAIT_TYPE_NAME(Tensors, "types.MappingProxyType[str, TensorInfo]")
#undef PLAIT_TYPE_NAME

}  // namespace pybind11::detail
