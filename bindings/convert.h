// Python arguments to C++ values, with errors that name the argument and its value. Arguments are
// declared as one of the types below, which accept any object and say what signatures show.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/text.h"
#include "module.h"

namespace plait::python {

inline bool any_object(PyObject*) { return true; }

#define PLAIT_OBJECT(NAME)                                    \
    class NAME : public py::object {                          \
    public:                                                   \
        PYBIND11_OBJECT_DEFAULT(NAME, py::object, any_object) \
    };
PLAIT_OBJECT(Integer)  // an int, or what stands for one: a NumPy integer, a Sequence
PLAIT_OBJECT(OptionalInteger)
PLAIT_OBJECT(OptionalReals)  // an iterable of floats, or None
PLAIT_OBJECT(OptionalReal)   // a float, or what Python takes for one
PLAIT_OBJECT(Flag)           // a bool, Python's or NumPy's
PLAIT_OBJECT(OptionalFlag)
PLAIT_OBJECT(FlagOrAuto)
PLAIT_OBJECT(Text)
PLAIT_OBJECT(OptionalText)
PLAIT_OBJECT(Ids)        // one integer or several
PLAIT_OBJECT(Positions)  // none, one integer or an array of them
PLAIT_OBJECT(ArrayLike)
PLAIT_OBJECT(OptionalArrayLike)
PLAIT_OBJECT(LogitsChoice)  // "last", "all", "none" or a mask
PLAIT_OBJECT(PathLike)
PLAIT_OBJECT(BytesLike)  // an object with bytes in one piece
PLAIT_OBJECT(ModelObject)
PLAIT_OBJECT(ContextObject)
PLAIT_OBJECT(StageList)
PLAIT_OBJECT(AdapterScales)
PLAIT_OBJECT(AdapterObject)
// Results whose type a signature cannot say by itself.
PLAIT_OBJECT(Metadata)
PLAIT_OBJECT(MetadataDict)
PLAIT_OBJECT(Tensors)
PLAIT_OBJECT(FloatRows)  // or None; a checker need not ask which at every use
PLAIT_OBJECT(OutputObject)
PLAIT_OBJECT(HeldSequence)
#undef PLAIT_OBJECT

// "an int, got 'x'": what was expected and the value, shortened.
[[noreturn]] void wrong_type(const char* name, const char* expected, py::handle got);
std::string shown(py::handle value);

// TypeError where the object is no integer; ValueError where it does not fit int64.
int64_t to_int64(const char* name, py::handle value);

// As to_int64, and `Error` where it is outside [least, most].
template <typename Error = InvalidArgument>
int64_t to_int_between(const char* name, py::handle value, int64_t least, int64_t most) {
    int overflow = 0;
    int64_t result = 0;
    if (PyLong_CheckExact(value.ptr())) {
        result = PyLong_AsLongLongAndOverflow(value.ptr(), &overflow);
    } else {
        if (!PyIndex_Check(value.ptr())) wrong_type(name, "an integer", value);
        const auto index = py::reinterpret_steal<py::object>(PyNumber_Index(value.ptr()));
        if (!index) throw py::error_already_set();
        result = PyLong_AsLongLongAndOverflow(index.ptr(), &overflow);
    }
    if (overflow != 0 || result < least || result > most)
        throw Error(text(name, ": expected ", least, " to ", most, ", got ", shown(value)));
    return result;
}

template <typename Error = InvalidArgument>
int32_t to_int32(const char* name, py::handle value) {
    return static_cast<int32_t>(to_int_between<Error>(name, value, INT32_MIN, INT32_MAX));
}

double to_double(const char* name, py::handle value);
bool to_bool(const char* name, py::handle value);
std::string to_text(const char* name, py::handle value);
std::string to_path(const char* name, py::handle value);  // bytes of the file system

// Several integers if `value` holds several (a list, a tuple, an array, a set, ...); a single one
// otherwise. The result is appended to `out`.
template <typename Error>
void to_int32s(const char* name, py::handle value, std::vector<int32_t>& out);

// UTF-8 as GGUF files mean it; other bytes survive as surrogates (PEP 383).
py::str from_utf8(std::string_view bytes);
// For people to read: what is not UTF-8 as \x90, so that it can be printed.
py::str legible(std::string_view bytes);

}  // namespace plait::python

namespace pybind11::detail {

#define PLAIT_SHOWN_AS(NAME, TEXT)                     \
    template <>                                        \
    struct handle_type_name<plait::python::NAME> {     \
        static constexpr auto name = const_name(TEXT); \
    };
PLAIT_SHOWN_AS(Integer, "typing.SupportsIndex")
PLAIT_SHOWN_AS(OptionalInteger, "typing.SupportsIndex | None")
PLAIT_SHOWN_AS(OptionalReals, "collections.abc.Iterable[typing.SupportsFloat] | None")
PLAIT_SHOWN_AS(OptionalReal, "typing.SupportsFloat | typing.SupportsIndex | None")
PLAIT_SHOWN_AS(Flag, "bool")
PLAIT_SHOWN_AS(OptionalFlag, "bool | None")
PLAIT_SHOWN_AS(FlagOrAuto, "bool | str")
PLAIT_SHOWN_AS(Text, "str")
PLAIT_SHOWN_AS(OptionalText, "str | None")
PLAIT_SHOWN_AS(Ids, "typing.SupportsIndex | collections.abc.Iterable[typing.SupportsIndex]")
PLAIT_SHOWN_AS(Positions, "typing.SupportsIndex | numpy.typing.ArrayLike | None")
PLAIT_SHOWN_AS(ArrayLike, "numpy.typing.ArrayLike")
PLAIT_SHOWN_AS(OptionalArrayLike, "numpy.typing.ArrayLike | None")
PLAIT_SHOWN_AS(LogitsChoice, "str | numpy.typing.ArrayLike")
PLAIT_SHOWN_AS(PathLike, "str | os.PathLike[str]")
PLAIT_SHOWN_AS(Metadata, "types.MappingProxyType[str, typing.Any]")
PLAIT_SHOWN_AS(MetadataDict, "dict[str, typing.Any]")
PLAIT_SHOWN_AS(BytesLike, "bytes | bytearray | memoryview | numpy.typing.NDArray[numpy.uint8]")
PLAIT_SHOWN_AS(ModelObject, "Model")
PLAIT_SHOWN_AS(ContextObject, "Context")
PLAIT_SHOWN_AS(StageList, "collections.abc.Iterable[tuple[typing.Any, ...]]")
PLAIT_SHOWN_AS(AdapterScales, "collections.abc.Mapping[Adapter, float] | None")
PLAIT_SHOWN_AS(AdapterObject, "Adapter")
PLAIT_SHOWN_AS(FloatRows, "numpy.typing.NDArray[numpy.float32] | typing.Any")
PLAIT_SHOWN_AS(OutputObject, "Output")
PLAIT_SHOWN_AS(HeldSequence, "HeldSequence")
PLAIT_SHOWN_AS(Tensors, "types.MappingProxyType[str, TensorInfo]")
#undef PLAIT_SHOWN_AS

}  // namespace pybind11::detail
