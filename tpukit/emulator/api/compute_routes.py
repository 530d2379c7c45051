"""The part of the Compute Engine API v1 that TPU tools use, by names of its reference pages."""

from __future__ import annotations

from collections.abc import Iterator

from tpukit.emulator.api.routes import ApiRoute, Handler, routes_below
from tpukit.emulator.api.service import Service

_PROJECT = "/compute/v1/projects/{project}"


def compute_routes(service: Service) -> tuple[ApiRoute, ...]:
    """Return the routes of the Compute Engine API."""
    firewalls, operations = service.firewalls, service.compute_operations
    networks, zones, disks = service.networks, service.zones, service.disks
    regions, subnetworks = service.regions, service.subnetworks
    instances, machines = service.instances, service.machine_types
    instance = "/zones/{zone}/instances/{instance}"
    subnetwork_list = "/regions/{region}/subnetworks"
    set_metadata = service.projects.set_common_instance_metadata
    return routes_below(
        _PROJECT,
        ("firewalls.insert", "POST", "/global/firewalls", firewalls.insert),
        ("firewalls.list", "GET", "/global/firewalls", firewalls.list),
        ("firewalls.get", "GET", "/global/firewalls/{firewall}", firewalls.get),
        ("firewalls.patch", "PATCH", "/global/firewalls/{firewall}", firewalls.patch),
        ("firewalls.update", "PUT", "/global/firewalls/{firewall}", firewalls.update),
        ("firewalls.delete", "DELETE", "/global/firewalls/{firewall}", firewalls.delete),
        ("globalOperations.list", "GET", "/global/operations", operations.list),
        ("globalOperations.get", "GET", "/global/operations/{operation}", operations.get),
        ("globalOperations.wait", "POST", "/global/operations/{operation}/wait", operations.get),
        ("zoneOperations.list", "GET", "/zones/{zone}/operations", operations.list),
        ("zoneOperations.get", "GET", "/zones/{zone}/operations/{operation}", operations.get),
        (
            "zoneOperations.wait",
            "POST",
            "/zones/{zone}/operations/{operation}/wait",
            operations.get,
        ),
        ("regionOperations.list", "GET", "/regions/{region}/operations", operations.list),
        ("regionOperations.get", "GET", "/regions/{region}/operations/{operation}", operations.get),
        (
            "regionOperations.wait",
            "POST",
            "/regions/{region}/operations/{operation}/wait",
            operations.get,
        ),
        ("disks.aggregatedList", "GET", "/aggregated/disks", disks.aggregated),
        ("disks.insert", "POST", "/zones/{zone}/disks", disks.insert),
        ("disks.list", "GET", "/zones/{zone}/disks", disks.list),
        ("disks.get", "GET", "/zones/{zone}/disks/{disk}", disks.get),
        ("disks.delete", "DELETE", "/zones/{zone}/disks/{disk}", disks.delete),
        ("networks.insert", "POST", "/global/networks", networks.insert),
        ("networks.list", "GET", "/global/networks", networks.list),
        ("networks.get", "GET", "/global/networks/{network}", networks.get),
        ("networks.delete", "DELETE", "/global/networks/{network}", networks.delete),
        (
            "networks.getEffectiveFirewalls",
            "GET",
            "/global/networks/{network}/getEffectiveFirewalls",
            firewalls.effective,
        ),
        ("projects.get", "GET", "", service.projects.get),
        ("projects.getXpnHost", "GET", "/getXpnHost", service.projects.get_host),
        ("zones.list", "GET", "/zones", zones.list),
        ("zones.get", "GET", "/zones/{zone}", zones.get),
        ("regions.list", "GET", "/regions", regions.list),
        ("regions.get", "GET", "/regions/{region}", regions.get),
        ("subnetworks.aggregatedList", "GET", "/aggregated/subnetworks", subnetworks.aggregated),
        ("subnetworks.insert", "POST", subnetwork_list, subnetworks.insert),
        ("subnetworks.list", "GET", subnetwork_list, subnetworks.list),
        ("subnetworks.get", "GET", f"{subnetwork_list}/{{subnetwork}}", subnetworks.get),
        ("subnetworks.delete", "DELETE", f"{subnetwork_list}/{{subnetwork}}", subnetworks.delete),
        ("instances.aggregatedList", "GET", "/aggregated/instances", instances.aggregated),
        ("instances.list", "GET", "/zones/{zone}/instances", instances.list),
        ("instances.insert", "POST", "/zones/{zone}/instances", instances.insert),
        ("instances.get", "GET", instance, instances.get),
        ("instances.delete", "DELETE", instance, instances.delete),
        ("instances.start", "POST", f"{instance}/start", instances.start),
        ("instances.stop", "POST", f"{instance}/stop", instances.stop),
        ("instances.setLabels", "POST", f"{instance}/setLabels", instances.set_labels),
        ("instances.setMetadata", "POST", f"{instance}/setMetadata", instances.set_metadata),
        ("instances.setTags", "POST", f"{instance}/setTags", instances.set_tags),
        (
            "instances.getGuestAttributes",
            "GET",
            f"{instance}/getGuestAttributes",
            instances.get_guest_attributes,
        ),
        ("machineTypes.list", "GET", "/zones/{zone}/machineTypes", machines.list),
        ("machineTypes.get", "GET", "/zones/{zone}/machineTypes/{machine}", machines.get),
        ("images.get", "GET", "/global/images/{image}", machines.get_image),
        (
            "images.getFromFamily",
            "GET",
            "/global/images/family/{family}",
            machines.get_from_family,
        ),
        (
            "imageFamilyViews.get",
            "GET",
            "/zones/{zone}/imageFamilyViews/{family}",
            machines.get_family_view,
        ),
        ("projects.setCommonInstanceMetadata", "POST", "/setCommonInstanceMetadata", set_metadata),
        *_group_routes(service),
    )


def _group_routes(service: Service) -> Iterator[tuple[str, str, str, Handler]]:
    """Yield the methods of managed instance groups, and of what they are made from."""
    policies, templates, groups = service.policies, service.templates, service.groups
    group = "/zones/{zone}/instanceGroupManagers/{group}"
    for name, path, handlers in (
        ("resourcePolicies", "/regions/{region}/resourcePolicies", policies),
        ("instanceTemplates", "/global/instanceTemplates", templates),
        ("regionInstanceTemplates", "/regions/{region}/instanceTemplates", templates),
    ):
        yield (f"{name}.insert", "POST", path, handlers.insert)
        yield (f"{name}.list", "GET", path, handlers.list)
        yield (f"{name}.get", "GET", f"{path}/{{part}}", handlers.get)
        yield (f"{name}.delete", "DELETE", f"{path}/{{part}}", handlers.delete)
    yield from (
        (f"{name}.aggregatedList", "GET", f"/aggregated/{name}", handlers.aggregated)
        for name, handlers in (
            ("resourcePolicies", policies),
            ("instanceTemplates", templates),
            ("instanceGroupManagers", groups),
        )
    )
    yield ("instanceGroupManagers.insert", "POST", group.rpartition("/")[0], groups.insert)
    yield ("instanceGroupManagers.list", "GET", group.rpartition("/")[0], groups.list)
    yield ("instanceGroupManagers.get", "GET", group, groups.get)
    yield ("instanceGroupManagers.delete", "DELETE", group, groups.delete)
    members, errors = "listManagedInstances", "listErrors"
    yield (f"instanceGroupManagers.{members}", "POST", f"{group}/{members}", groups.list_members)
    yield (f"instanceGroupManagers.{errors}", "GET", f"{group}/{errors}", groups.list_errors)
    yield ("instanceGroups.list", "GET", "/zones/{zone}/instanceGroups", groups.list_groups)
    yield ("autoscalers.list", "GET", "/zones/{zone}/autoscalers", groups.list_autoscalers)
