// What this build is and what this machine offers.
#include <thread>

#include "backend/cpu/isa.h"
#ifdef PLAIT_HAS_VULKAN
#include "backend/vulkan/devices.h"
#endif
#include "base/text.h"
#include "made.h"
#include "model/model.h"
#include "module.h"
#include "runtime/devices/backend_registry.h"
#include "runtime/devices/fit.h"

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

py::typing::Dict<py::str, py::object> build_info() {
    py::dict info;
    info["version"] = PLAIT_VERSION;
    info["compiler"] = compiler();
    info["isas"] = names(cpu::available_isas());
    info["isas_built"] = names(cpu::built_isas());
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

// A place where a context can run.
struct Device {
    std::string name;  // what Context(backend=...) and ctx.stats.nodes call it
    std::string description;
    uint64_t memory = 0;  // bytes that programs can still get
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
    cpu.description =
        text(std::thread::hardware_concurrency(), " logical processors, ", to_string(isas.back()));
    cpu.memory = free_memory();
    cpu.features = names(isas);
    py::list all;
    all.append(py::cast(cpu));
    for (const BackendKind& kind : backend_kinds())
        for (const DeviceInfo& info : kind.devices()) append(all, info);
    return all;
}

}  // namespace

void bind_build(py::module_& m) {
    py::class_<Device>(m, "Device", only_ours(),
                       "A place where a context can run, as listed by `devices()`.")
        .def_property_readonly(
            "name", [](const Device& d) { return d.name; },
            "What Context(backend=...) and ctx.stats.nodes call it: \"cpu\", \"vulkan:0\".")
        .def_property_readonly(
            "description", [](const Device& d) { return d.description; }, "One line for people.")
        .def_property_readonly(
            "memory", [](const Device& d) { return d.memory; },
            "Bytes of its memory: of the CPU those that were free when it was listed, of others "
            "the "
            "largest heap of their own; 0 where the system does not say.")
        .def_property_readonly(
            "features", [](const Device& d) -> py::typing::List<py::str> { return d.features; },
            "Names of what it offers; of the CPU its instruction sets, weakest first, of a Vulkan "
            "device features and extensions.")
        .def_property_readonly(
            "limits",
            [](const Device& d) -> py::typing::Dict<py::str, py::int_> { return d.limits; },
            "What it takes at most, by name; none are known of the CPU.")
        .def("__repr__", [](const Device& d) {
            return py::str("<plait.Device {}: {}>").format(d.name, d.description);
        });

    m.def("devices", &devices,
          "The devices of this machine that this build can run a context on, the CPU first.");

    m.def("build_info", &build_info, R"(What this build of plait is made of.

Returns
-------
dict
    "version" (str), "compiler" (str), "isas" (list of str: instruction sets that this machine runs,
    weakest first), "isas_built" (list of str: those compiled in), "vulkan" (bool),
    "cooperative_matrices" (list of str: "KHR", "NV", the extensions of Vulkan that products can use),
    "architectures" (list of str: general.architecture of the files that Model opens),
    "commit" (str, or None where the build was not told).)");
}

}  // namespace plait::python
