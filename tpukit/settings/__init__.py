"""Values and where each came from: flags, variables, files, gcloud's configuration.

Nothing here asks a cloud or starts anything; what a setting is for is known where it is used.
"""
