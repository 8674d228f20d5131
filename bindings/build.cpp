// Properties of this build and the devices of this machine.
#include <algorithm>
#include <optional>
#include <thread>

#include "backend/cpu/blas/library.h"
#include "backend/cpu/isa.h"
#ifdef PLAIT_HAS_VULKAN
#include "backend/vulkan/devices.h"
#endif
#include "base/text.h"
#include "model/model.h"
#include "module.h"
#include "objects.h"
#include "runtime/devices/backend_registry.h"
#include "runtime/devices/host_memory.h"

namespace plait::python {
namespace {

py::str compiler() {
#if defined(__clang__)
    return py::str("clang " __clang_version__);
#else
    return py::str("gcc " __VERSION__);
#endif
}

py::list names(const std::vector<cpu::Isa>& isas) {
    py::list result;
    for (const cpu::Isa isa : isas) result.append(py::str(std::string(to_string(isa))));
    return result;
}

py::list known_architectures() {
    py::list result;
    for (const std::string& name : architectures()) result.append(py::str(name));
    return result;
}

py::list cooperative_matrices() {
    py::list result;
#ifdef PLAIT_HAS_VULKAN
    for (const std::string& name : vulkan::cooperative_matrices()) result.append(py::str(name));
#endif
    return result;
}

// The version of OpenBLAS that the instruction set "blas" uses, or None.
py::object openblas() {
    const std::vector<cpu::Isa> isas = cpu::available_isas();
    if (std::ranges::find(isas, cpu::isa_from_name("blas")) == isas.end()) return py::none();
    return py::str(cpu::openblas_description());
}

py::typing::Dict<py::str, py::object> build_info() {
    py::dict info;
    info["version"] = PLAIT_VERSION;
    info["compiler"] = compiler();
    info["isas"] = names(cpu::available_isas());
    info["isas_built"] = names(cpu::built_isas());
    info["blas"] = openblas();
#ifdef PLAIT_HAS_VULKAN
    info["vulkan"] = true;
#else
    info["vulkan"] = false;
#endif
    info["cooperative_matrices"] = cooperative_matrices();
    info["architectures"] = known_architectures();
#ifdef PLAIT_COMMIT
    info["commit"] = PLAIT_COMMIT;
#else
    info["commit"] = py::none();
#endif
    return info;
}

// A device on which a context can run.
struct Device {
    std::string name;  // as in Context(backend=...) and ctx.stats.nodes
    std::string description;
    uint64_t memory = 0;  // bytes; free memory for the CPU
    py::list features;
    py::dict limits;
};

void append(py::list& all, const DeviceInfo& info) {
    Device device;
    device.name = info.name;
    device.description = info.description;
    device.memory = info.memory;
    for (const std::string& feature : info.features) device.features.append(py::str(feature));
    for (const auto& [name, value] : info.limits) device.limits[py::str(name)] = value;
    all.append(py::cast(device));
}

py::typing::List<Device> devices() {
    const std::vector<cpu::Isa> isas = cpu::available_isas();
    Device cpu;
    cpu.name = "cpu";
    cpu.description = text(std::thread::hardware_concurrency(), " logical processors, ",
                           to_string(cpu::default_isa()));
    cpu.memory = host_memory().free;
    cpu.features = names(isas);
    py::list all;
    all.append(py::cast(cpu));
    for (const BackendKind& kind : backend_kinds())
        for (const DeviceInfo& info : kind.devices()) append(all, info);
    return all;
}

}  // namespace

void bind_build(py::module_& m) {
    py::class_<Device>(m, "Device", not_constructible(),
                       "A device on which a context can run; see `devices()`.")
        .def_property_readonly(
            "name", [](const Device& d) { return d.name; },
            "Name for Context(backend=...) and in ctx.stats.nodes, such as \"cpu\" or "
            "\"vulkan:0\".")
        .def_property_readonly(
            "description", [](const Device& d) { return d.description; }, "One-line description.")
        .def_property_readonly(
            "memory", [](const Device& d) { return d.memory; },
            R"(Memory in bytes; 0 if unknown.

For the CPU, the free memory when the device was listed; for others, the largest device-local heap.)")
        .def_property_readonly(
            "features", [](const Device& d) -> py::typing::List<py::str> { return d.features; },
            R"(Names of supported features.

For the CPU, its instruction sets in ascending order; for Vulkan, device features and extensions.)")
        .def_property_readonly(
            "limits",
            [](const Device& d) -> py::typing::Dict<py::str, py::int_> { return d.limits; },
            "Limits of the device by name; empty for the CPU.")
        .def("__repr__", [](const Device& d) {
            return py::str("<plait.Device {}: {}>").format(d.name, d.description);
        });

    m.def("devices", &devices,
          R"(Return the devices on which this build can run a context, the CPU first.)");

    m.def("build_info", &build_info, R"(Return the properties of this build of plait.

Returns:
    A dict with the keys "version" (str), "compiler" (str), "isas" (list of str, instruction sets
    that this machine can run, in ascending order), "isas_built" (list of str, instruction sets
    compiled in), "blas" (str, the version of OpenBLAS that the instruction set "blas" uses; None if
    OpenBLAS is not installed or the build excludes it), "vulkan" (bool), "cooperative_matrices" (list
    of str, Vulkan extensions usable for matrix products: "KHR", "NV"), "architectures" (list of str,
    values of general.architecture that Model supports) and "commit" (str, or None if unknown at build
    time).)");

    m.def(
        "version", [] { return PLAIT_VERSION; }, R"(Return the version of plait.)");

    m.def(
        "choose_isa",
        [](const py::typing::Optional<py::str>& limit) {
            std::optional<std::string> name;
            if (!limit.is_none()) name = limit.cast<std::string>();
            return std::string(to_string(cpu::choose_isa(name)));
        },
        py::arg("limit"),
        R"(Return the name of the instruction set that Context(isa=limit) uses.)");
}

}  // namespace plait::python
