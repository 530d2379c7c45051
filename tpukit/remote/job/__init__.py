"""Commands that go on when the connection is gone: started once, found again, followed.

The programs that keep a job on its worker lie beside the modules that send them.
"""
