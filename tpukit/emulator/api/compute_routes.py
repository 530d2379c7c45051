"""The part of the Compute Engine API v1 that TPU tools use, by names of its reference pages."""

from __future__ import annotations

from collections.abc import Iterator

from tpukit.emulator.api.routes import ApiRoute, Handler, routes_below
from tpukit.emulator.api.service import Service

_PROJECT = "/compute/v1/projects/{project}"


def compute_routes(service: Service) -> tuple[ApiRoute, ...]:
    """Return the routes of the Compute Engine API."""
    firewalls, instances, groups = service.firewalls, service.instances, service.groups
    projects, machines = service.projects, service.machine_types
    zones, regions = service.zones, service.regions
    images, machine_types = "/global/images", "/zones/{zone}/machineTypes"
    firewall, network = "/global/firewalls/{name}", "/global/networks/{network}"
    instance = "/zones/{zone}/instances/{name}"
    group = "/zones/{zone}/instanceGroupManagers/{name}"
    effective, attributes = "getEffectiveFirewalls", "getGuestAttributes"
    members, errors = "listManagedInstances", "listErrors"
    common = "setCommonInstanceMetadata"
    return routes_below(
        _PROJECT,
        *_standard_routes(service),
        *_operation_routes(service),
        ("firewalls.patch", "PATCH", firewall, firewalls.patch),
        ("firewalls.update", "PUT", firewall, firewalls.update),
        (f"networks.{effective}", "GET", f"{network}/{effective}", firewalls.effective),
        ("projects.get", "GET", "", projects.get),
        ("projects.getXpnHost", "GET", "/getXpnHost", projects.get_host),
        (f"projects.{common}", "POST", f"/{common}", projects.set_common_instance_metadata),
        ("zones.list", "GET", "/zones", zones.list),
        ("zones.get", "GET", "/zones/{zone}", zones.get),
        ("regions.list", "GET", "/regions", regions.list),
        ("regions.get", "GET", "/regions/{region}", regions.get),
        ("instances.start", "POST", f"{instance}/start", instances.start),
        ("instances.stop", "POST", f"{instance}/stop", instances.stop),
        ("instances.setLabels", "POST", f"{instance}/setLabels", instances.set_labels),
        ("instances.setMetadata", "POST", f"{instance}/setMetadata", instances.set_metadata),
        ("instances.setTags", "POST", f"{instance}/setTags", instances.set_tags),
        (
            f"instances.{attributes}",
            "GET",
            f"{instance}/{attributes}",
            instances.get_guest_attributes,
        ),
        (f"instanceGroupManagers.{members}", "POST", f"{group}/{members}", groups.list_members),
        (f"instanceGroupManagers.{errors}", "GET", f"{group}/{errors}", groups.list_errors),
        ("instanceGroups.list", "GET", "/zones/{zone}/instanceGroups", groups.list_groups),
        ("autoscalers.list", "GET", "/zones/{zone}/autoscalers", groups.list_autoscalers),
        ("machineTypes.list", "GET", machine_types, machines.list),
        ("machineTypes.get", "GET", f"{machine_types}/{{machine}}", machines.get),
        ("images.get", "GET", f"{images}/{{image}}", machines.get_image),
        ("images.getFromFamily", "GET", f"{images}/family/{{family}}", machines.get_from_family),
        (
            "imageFamilyViews.get",
            "GET",
            "/zones/{zone}/imageFamilyViews/{family}",
            machines.get_family_view,
        ),
    )


def _standard_routes(service: Service) -> Iterator[tuple[str, str, str, Handler]]:
    """Yield the methods that every collection has, and the lists of all places."""
    zone, region = "/zones/{zone}", "/regions/{region}"
    for name, place, handlers in (
        ("firewalls", "/global", service.firewalls),
        ("networks", "/global", service.networks),
        ("subnetworks", region, service.subnetworks),
        ("disks", zone, service.disks),
        ("instances", zone, service.instances),
        ("instanceGroupManagers", zone, service.groups),
        ("resourcePolicies", region, service.policies),
        ("instanceTemplates", "/global", service.templates),
        ("regionInstanceTemplates", region, service.templates),
    ):
        path = f"{place}/{handlers.collection}"
        yield (f"{name}.insert", "POST", path, handlers.insert)
        yield (f"{name}.list", "GET", path, handlers.list)
        yield (f"{name}.get", "GET", f"{path}/{{name}}", handlers.get)
        yield (f"{name}.delete", "DELETE", f"{path}/{{name}}", handlers.delete)
    for handlers in (
        *(service.disks, service.instances, service.groups),
        *(service.subnetworks, service.policies, service.templates),
    ):
        name = handlers.collection
        yield (f"{name}.aggregatedList", "GET", f"/aggregated/{name}", handlers.aggregated)


def _operation_routes(service: Service) -> Iterator[tuple[str, str, str, Handler]]:
    operations = service.compute_operations
    for name, place in (
        ("global", "/global"),
        ("zone", "/zones/{zone}"),
        ("region", "/regions/{region}"),
    ):
        path, one = f"{place}/operations", f"{place}/operations/{{operation}}"
        yield (f"{name}Operations.list", "GET", path, operations.list)
        yield (f"{name}Operations.get", "GET", one, operations.get)
        yield (f"{name}Operations.wait", "POST", f"{one}/wait", operations.get)
