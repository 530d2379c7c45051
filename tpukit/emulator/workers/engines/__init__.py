"""What a worker's commands run in: processes of this account, or namespaces of their own.

Nothing here listens for SSH.
"""
