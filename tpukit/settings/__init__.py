"""Settings and their origins: flags, variables, files, gcloud's configuration.

No module here calls a cloud or starts a process, and none knows the purpose of a setting.
"""
